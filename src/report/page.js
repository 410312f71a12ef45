'use strict';
(() => {
  const data = JSON.parse(document.getElementById('data').textContent);
  const runs = data.runs;
  const view = { axis: 'step', smooth: 0, log: false, hidden: new Set(), run: 0, sample: -1, sort: 'best', down: false, same: false };
  const SVG = 'http://www.w3.org/2000/svg';
  const COLOURS = 8;
  const colour = (index) => `var(--c${index % COLOURS})`;
  const several = runs.length > 1;

  // Elements.
  const el = (name, attributes = {}, ...children) => {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      if (key === 'style') made.style.cssText = value; else if (value !== null) made.setAttribute(key, value);
    }
    made.append(...children);
    return made;
  };
  const svg = (name, attributes = {}, text) => {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const fill = (id, ...children) => document.getElementById(id).replaceChildren(...children);
  const dot = (index) => el('i', { class: 'dot', style: `background:${colour(index)}` });

  // Numbers as people read them.
  const grouped = (n) => Math.round(n).toLocaleString('en-US');
  const trimmed = (n, digits) => String(parseFloat(n.toPrecision(digits)));
  const scaled = (n, units, base) => {
    let at = 0;
    while (Math.abs(n) >= base * 0.9995 && at < units.length - 1) { n /= base; at += 1; }
    return trimmed(n, 3) + units[at];
  };
  const short = (n) => (Math.abs(n) < 1e4 ? trimmed(n, 4) : scaled(n, ['', 'k', 'M', 'G', 'T'], 1000));
  const bytes = (n) => scaled(n, [' B', ' kB', ' MB', ' GB', ' TB'], 1000);
  const percent = (n) => `${n && Math.abs(n) < 0.001 ? '< 0.1' : trimmed(Math.round(1000 * n) / 10, 4)} %`;
  const loss = (n) => n.toFixed(4);
  const small = (n) => (n === 0 ? '0' : Math.abs(n) < 1e-3 || Math.abs(n) >= 1e5 ? n.toExponential(2).replace(/\.?0+e/, 'e') : trimmed(n, 4));
  const duration = (s) => {
    if (s < 10) return `${s.toFixed(1)} s`;
    const whole = Math.round(s);
    if (whole < 60) return `${whole} s`;
    if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
    if (whole < 86400) return `${Math.floor(whole / 3600)} h ${Math.floor(whole / 60) % 60} min`;
    return `${Math.floor(whole / 86400)} d ${Math.floor(whole / 3600) % 24} h`;
  };
  const AXES = { step: grouped, tokens: short, hours: (h) => duration(h * 3600) };

  // Curves. A line belongs to a run and is one name of one of its tracks.
  const line = (run, track, name, more = {}) => ({ run, track: runs[run][track], curve: runs[run][track].curves[name], ...more });
  const shown = () => runs.map((_, index) => index).filter((index) => !view.hidden.has(index));
  const each = (track, name, more) => shown().map((run) => line(run, track, name, { colour: colour(run), label: runs[run].name, ...more }));
  // From the first part to the last, so that depth can be seen.
  const ramp = (at, count) => `hsl(${Math.round(215 - 195 * at / Math.max(1, count - 1))} 72% 55%)`;
  const groups = (track) => Object.keys(runs[view.run][track].curves).map((name, at, all) => line(view.run, track, name, { colour: ramp(at, all.length), label: name }));
  const titled = (note) => (several ? runs[view.run].name : note);
  const onCard = runs.some((run) => run.machine.curves.used_bytes);
  const CHARTS = [
    { title: 'Loss', note: 'nats a token', wide: true, log: true, format: loss, lines: () => [
      ...each('steps', 'loss', several ? {} : { label: 'training' }),
      ...each('evaluations', 'validation_loss', several ? { dashed: true, kind: 'validation' } : { label: 'validation', colour: colour(1), dots: true }),
    ] },
    { title: 'Learning rate', format: small, zero: true, plain: true, lines: () => each('steps', 'learning_rate') },
    { title: 'Gradient norm', note: 'before clipping', format: small, zero: true, lines: () => each('steps', 'norm') },
    { title: 'Speed', note: 'training tokens a second', format: (n) => `${short(n)}/s`, zero: true, lines: () => each('steps', 'tokens_per_s') },
    { title: 'MFU', note: 'share of the device’s peak', format: percent, zero: true, lines: () => each('steps', 'mfu') },
    { title: 'Memory', note: onCard ? 'of the device' : 'of the process', format: bytes, zero: true, plain: true, lines: () => [
      ...each('machine', onCard ? 'used_bytes' : 'host_bytes', several ? {} : { label: 'used' }),
      ...each('machine', 'planned_bytes', several ? { dashed: true, kind: 'planned' } : { label: 'planned', colour: colour(1), dashed: true }),
    ] },
    { title: 'GPU utilisation', format: percent, zero: true, lines: () => each('machine', 'gpu_utilization') },
    { title: 'Gradient norm by part', note: () => titled('at evaluations'), format: small, zero: true, keys: true, lines: () => groups('gradients') },
    { title: 'Weight norm by part', note: () => titled('at evaluations'), format: small, zero: true, keys: true, lines: () => groups('weights') },
    { title: 'GPU power', format: (n) => `${short(n)} W`, zero: true, lines: () => each('machine', 'gpu_watts') },
  ];

  const smoothed = (numbers, weight) => {
    if (!weight) return numbers;
    let sum = 0, mass = 0;
    return numbers.map((n) => {
      if (n === null) return null;
      sum = weight * sum + (1 - weight) * n;
      mass = weight * mass + (1 - weight);
      return sum / mass;
    });
  };
  const ticks = (low, high, count) => {
    const rough = (high - low) / count || 1;
    const power = 10 ** Math.floor(Math.log10(rough));
    const unit = [1, 2, 2.5, 5, 10].find((factor) => factor * power >= rough) * power;
    const found = [];
    for (let at = Math.ceil(low / unit - 1e-9); at * unit <= high + unit * 1e-9; at += 1) found.push(at * unit);
    return found;
  };
  const logTicks = (low, high) => {
    const found = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
      for (const factor of high / low > 100 ? [1] : high / low > 8 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9]) {
        const at = factor * 10 ** power;
        if (at >= low && at <= high) found.push(at);
      }
    }
    return found;
  };

  const draw = (chart) => {
    const lines = chart.lines().filter((one) => one.curve && one.curve.mean.some((n) => n !== null));
    if (!lines.length) return null;
    const note = typeof chart.note === 'function' ? chart.note() : chart.note;
    const box = el('div', { class: 'chart' });
    const card = el('div', { class: chart.wide ? 'card wide' : 'card' },
      el('h2', {}, chart.title, ...(note ? [el('small', {}, note)] : [])), keysOf(chart, lines), box);
    // Drawn when the card has its width.
    card.drawIn = () => plot(chart, lines, box);
    return card;
  };
  const keysOf = (chart, lines) => {
    const own = chart.keys || (!several && lines.length > 1);
    const named = own ? lines.map((one) => [one.label, one.colour, one.dashed])
      : lines.some((one) => one.kind) ? [[chart.title === 'Loss' ? 'training' : 'used', 'var(--soft)', false], [lines.find((one) => one.kind).kind, 'var(--soft)', true]] : [];
    const key = ([label, ink, dashed]) => el('span', {}, el('i', { class: dashed ? 'dashed' : '', style: `border-color:${ink}` }), label);
    return el('div', { class: 'keys' }, ...named.map(key));
  };

  const plot = (chart, lines, box) => {
    const width = Math.max(box.clientWidth, 260), height = chart.wide ? 330 : 205;
    const pad = { left: 62, right: 10, top: 8, bottom: 24 };
    const weight = chart.plain ? 0 : view.smooth;
    const log = chart.log && view.log;
    let xs = [0, -Infinity], ys = [Infinity, -Infinity];
    for (const one of lines) {
      one.x = one.track[view.axis];
      one.y = smoothed(one.curve.mean, weight);
      for (const n of one.x) xs = [Math.min(xs[0], n), Math.max(xs[1], n)];
      for (const n of one.y.concat(one.curve.low || [], one.curve.high || [], weight ? one.curve.mean : [])) {
        if (n !== null && (!log || n > 0)) ys = [Math.min(ys[0], n), Math.max(ys[1], n)];
      }
    }
    if (chart.zero && !log) ys[0] = Math.min(0, ys[0]);
    if (ys[0] === ys[1]) ys = log ? [ys[0] / 2, ys[1] * 2] : [ys[0] - (Math.abs(ys[0]) || 1) * 0.5, ys[1] + (Math.abs(ys[1]) || 1) * 0.5];
    if (xs[0] === xs[1]) xs = [xs[0] - 1, xs[1] + 1];
    const margin = log ? 1 : (ys[1] - ys[0]) * 0.05;
    if (!log) ys = [chart.zero && ys[0] === 0 ? 0 : ys[0] - margin, ys[1] + margin];
    const x = (n) => pad.left + (n - xs[0]) / (xs[1] - xs[0]) * (width - pad.left - pad.right);
    const scale = log ? Math.log : (n) => n;
    const y = (n) => height - pad.bottom - (scale(n) - scale(ys[0])) / (scale(ys[1]) - scale(ys[0])) * (height - pad.top - pad.bottom);
    const root = svg('svg', { viewBox: `0 0 ${width} ${height}`, height, role: 'img', 'aria-label': chart.title });
    for (const at of log ? logTicks(ys[0], ys[1]) : ticks(ys[0], ys[1], chart.wide ? 6 : 4)) {
      root.append(svg('line', { class: 'grid', x1: pad.left, x2: width - pad.right, y1: y(at), y2: y(at) }));
      const text = chart.format === loss ? trimmed(at, 3) : chart.format(at);
      root.append(svg('text', { x: pad.left - 8, y: y(at) + 4, 'text-anchor': 'end' }, text));
    }
    root.append(svg('line', { class: 'axis', x1: pad.left, x2: width - pad.right, y1: height - pad.bottom, y2: height - pad.bottom }));
    for (const at of ticks(xs[0], xs[1], Math.max(3, Math.floor(width / 130)))) {
      root.append(svg('text', { x: x(at), y: height - 6, 'text-anchor': 'middle' }, view.axis === 'step' ? short(at) : AXES[view.axis](at)));
    }
    const path = (one, numbers) => {
      let pen = 'M', text = '';
      numbers.forEach((n, at) => {
        if (n === null || (log && n <= 0)) return;
        text += `${pen}${x(one.x[at]).toFixed(1)} ${y(n).toFixed(1)}`;
        pen = 'L';
      });
      return text;
    };
    for (const one of lines) {
      if (one.curve.low && !weight) {
        const known = one.x.map((_, at) => at).filter((at) => one.curve.low[at] !== null && (!log || one.curve.low[at] > 0));
        const edge = (numbers, order) => order.map((at) => `${x(one.x[at]).toFixed(1)} ${y(numbers[at]).toFixed(1)}`).join('L');
        if (known.length) root.append(svg('path', { class: 'band', fill: one.colour, d: `M${edge(one.curve.high, known)}L${edge(one.curve.low, [...known].reverse())}Z` }));
      }
      if (weight) root.append(svg('path', { class: 'raw', stroke: one.colour, d: path(one, one.curve.mean) }));
      root.append(svg('path', { class: 'curve', stroke: one.colour, d: path(one, one.y), ...(one.dashed ? { 'stroke-dasharray': '5 4' } : {}) }));
      if ((one.dots || one.y.length === 1) && one.y.length <= 80) {
        one.y.forEach((n, at) => { if (n !== null) root.append(svg('circle', { cx: x(one.x[at]), cy: y(n), r: 2.6, fill: one.colour })); });
      }
    }
    const cross = svg('line', { class: 'cross', y1: pad.top, y2: height - pad.bottom });
    root.append(cross);
    const tip = el('div', { class: 'tip' });
    box.replaceChildren(root, tip);
    const nearest = (numbers, place) => {
      let low = 0, high = numbers.length - 1;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (numbers[middle] < place) low = middle + 1; else high = middle;
      }
      return low > 0 && place - numbers[low - 1] < numbers[low] - place ? low - 1 : low;
    };
    const hide = () => { tip.style.visibility = cross.style.visibility = 'hidden'; };
    root.addEventListener('pointerleave', hide);
    root.addEventListener('pointermove', (event) => {
      const ratio = width / root.getBoundingClientRect().width;
      const place = xs[0] + ((event.offsetX * ratio) - pad.left) / (width - pad.left - pad.right) * (xs[1] - xs[0]);
      if (place < xs[0] || place > xs[1]) { hide(); return; }
      const rows = lines.map((one) => {
        const at = nearest(one.x, place);
        return { one, at, n: one.y[at], low: one.curve.low && one.curve.low[at], high: one.curve.high && one.curve.high[at] };
      }).filter((row) => row.n !== null && row.n !== undefined);
      if (!rows.length) { hide(); return; }
      const first = rows.reduce((best, row) => (Math.abs(row.one.x[row.at] - place) < Math.abs(best.one.x[best.at] - place) ? row : best));
      const where = first.one.x[first.at];
      rows.sort((a, b) => b.n - a.n);
      const label = (row) => row.one.label + (row.one.kind ? ` · ${row.one.kind}` : '');
      const heading = `${view.axis === 'step' ? 'step ' : ''}${AXES[view.axis](where)}${view.axis === 'tokens' ? ' tokens' : ''}`;
      tip.replaceChildren(el('b', {}, heading), ...rows.slice(0, 14).map((row) => el('div', {},
        el('i', { class: 'dot', style: `background:${row.one.colour}` }), el('span', {}, label(row)),
        el('span', {}, chart.format(row.n) + (row.low !== undefined && row.low !== null && row.low !== row.high && !weight ? ` (${chart.format(row.low)} – ${chart.format(row.high)})` : '')))));
      cross.setAttribute('x1', x(where));
      cross.setAttribute('x2', x(where));
      tip.style.visibility = cross.style.visibility = 'visible';
      const left = x(where) / ratio, room = box.clientWidth;
      tip.style.top = '8px';
      tip.style.left = left < room / 2 ? `${left + 14}px` : `${Math.max(0, left - 14 - tip.offsetWidth)}px`;
    });
  };

  // The figures of one run, or the table of several.
  const total = (run) => Object.values(run.account).reduce((sum, n) => sum + n, 0);
  const meanSpeed = (run) => {
    const spent = run.account.steps + run.account.waiting;
    return spent > 0 && run.last && run.last.tokens ? run.last.tokens / spent : null;
  };
  const meanOf = (run, name) => {
    const known = ((run.steps.curves[name] || {}).mean || []).filter((n) => n !== null);
    return known.length ? known.reduce((sum, n) => sum + n, 0) / known.length : null;
  };
  const figure = (name, value, note = '') => el('div', { class: 'card' }, el('div', { class: 'name' }, name), el('div', { class: 'value' }, value), el('div', { class: 'note' }, note));
  const figures = () => {
    const run = runs[0], last = run.last || {}, about = run.about;
    const cards = [];
    if (run.best) {
      cards.push(figure('Best validation loss', loss(run.best.loss), `at step ${grouped(run.best.step)}`));
      cards.push(figure('Perplexity', trimmed(Math.exp(run.best.loss), 4), run.best.bits_per_byte === null ? '' : `${trimmed(run.best.bits_per_byte, 4)} bits a byte`));
    }
    if (last.loss !== null && last.loss !== undefined) cards.push(figure('Training loss', loss(last.loss), `at step ${grouped(last.step)}${about.steps ? ` of ${grouped(about.steps)}` : ''}`));
    if (last.tokens) {
      const seen = last.data_seen === undefined ? '' : `, ${percent(last.data_seen)} of the data`;
      cards.push(figure('Tokens', short(last.tokens), `${trimmed(last.epoch, 3)} epochs${seen}`));
    }
    const speed = meanSpeed(run), mfu = meanOf(run, 'mfu');
    if (speed) cards.push(figure('Speed', `${short(speed)} tok/s`, mfu === null ? '' : `${percent(mfu)} of ${scaled(about.peak_flops_per_s || 0, ['', ' k', ' M', ' G', ' T', ' P'], 1000)}FLOP/s`));
    cards.push(figure('Goodput', percent(run.goodput), `of ${duration(total(run))}`));
    if (about.parameters) cards.push(figure('Parameters', short(about.parameters), about.planned_bytes ? `${bytes(about.planned_bytes)} planned` : ''));
    if (about.device) cards.push(figure('Device', about.device.split(/[:,(]/)[0].trim(), about.precision || ''));
    fill('figures', ...cards);
  };
  const differing = () => {
    if (data.columns.length) return data.columns;
    const keys = [...new Set(runs.flatMap((run) => run.config.map(([key]) => key)))];
    return keys.filter((key) => new Set(runs.map((run) => JSON.stringify(valueOf(run, key)))).size > 1);
  };
  const valueOf = (run, key) => (run.config.find(([name]) => name === key) || [key, null])[1];
  const written = (value) => (value === null ? '–' : Array.isArray(value) ? value.join(', ') : typeof value === 'number' ? (Math.abs(value) >= 1e4 ? grouped(value) : small(value)) : String(value));
  const table = () => {
    const keys = differing().slice(0, 8);
    const columns = [
      ...keys.map((key) => ({ id: key, name: key.replace(/^\w+\./, ''), of: (run) => valueOf(run, key), text: written, number: runs.some((run) => typeof valueOf(run, key) === 'number') })),
      { id: 'best', name: 'best validation', of: (run) => (run.best ? run.best.loss : null), text: loss, number: true },
      { id: 'at', name: 'at step', of: (run) => (run.best ? run.best.step : null), text: grouped, number: true },
      { id: 'bits', name: 'bits a byte', of: (run) => (run.best ? run.best.bits_per_byte : null), text: (n) => trimmed(n, 4), number: true },
      { id: 'loss', name: 'training', of: (run) => (run.last ? run.last.loss : null), text: loss, number: true },
      { id: 'step', name: 'steps', of: (run) => (run.last ? run.last.step : null), text: grouped, number: true },
      { id: 'speed', name: 'tok/s', of: meanSpeed, text: short, number: true },
      { id: 'goodput', name: 'goodput', of: (run) => run.goodput, text: percent, number: true },
    ];
    const sorter = columns.find((column) => column.id === view.sort);
    const rank = (a, b) => {
      const [p, q] = [a, b].map((at) => (sorter ? sorter.of(runs[at]) : runs[at].name));
      if (p === null || p === undefined) return 1;
      if (q === null || q === undefined) return -1;
      return (p < q ? -1 : p > q ? 1 : 0) * (view.down ? -1 : 1);
    };
    const order = runs.map((_, at) => at).sort(rank);
    const head = ({ id, name, number }) => {
      const cell = el('th', { role: 'button', tabindex: 0, class: number ? 'number' : '', 'aria-sort': view.sort === id ? (view.down ? 'descending' : 'ascending') : null }, name + (view.sort === id ? (view.down ? ' ↓' : ' ↑') : ''));
      const sort = () => { view.down = view.sort === id && !view.down; view.sort = id; table(); };
      cell.addEventListener('click', sort);
      cell.addEventListener('keydown', (event) => { if (event.key === 'Enter') sort(); });
      return cell;
    };
    const row = (at) => el('tr', { class: view.hidden.has(at) ? 'off' : '' }, el('td', {}, dot(at), ` ${runs[at].name}`), ...columns.map((column) => {
      const value = column.of(runs[at]);
      return el('td', { class: column.number ? 'number' : '' }, value === null || value === undefined ? '–' : column.text(value));
    }));
    fill('figures', el('div', { class: 'card all' }, el('div', { class: 'row' }, el('h2', {}, `${runs.length} runs`)), el('div', { class: 'scroll' },
      el('table', {}, el('thead', {}, el('tr', {}, head({ id: 'name', name: 'run' }), ...columns.map(head))), el('tbody', {}, ...order.map(row))))));
  };

  // Where the time went: of the whole run, and of one step where it was taken apart.
  const PARTS = { steps: 2, waiting: 4, evaluation: 0, saving: 3, sampling: 5, startup: 7, lost: 1 };
  const STAGES = { data: 4, forward: 0, head: 5, backward: 3, update: 2, host: 7 };
  const stack = (parts, colours) => {
    const all = Object.values(parts).reduce((sum, n) => sum + n, 0) || 1;
    const known = Object.entries(parts).filter(([, n]) => n > 0);
    return [
      el('div', { class: 'bar' }, ...known.map(([name, n]) => el('span', { title: `${name}: ${duration(n)}, ${percent(n / all)}`, style: `width:${100 * n / all}%;background:${colour(colours[name] ?? 7)}` }))),
      el('div', { class: 'keys' }, ...known.map(([name, n]) => el('span', {}, el('i', { class: 'dot', style: `background:${colour(colours[name] ?? 7)};border:0;width:9px;height:9px` }), `${name} ${percent(n / all)}`))),
    ];
  };
  const times = () => {
    const most = Math.min(runs.length, 12);
    const of = (run, index) => [...(several ? [el('div', {}, dot(index), ` ${run.name} · ${duration(total(run))}, goodput ${percent(run.goodput)}`)] : []), ...stack(run.account, PARTS)];
    const cards = [el('div', { class: 'card' }, el('h2', {}, 'Where the time went', el('small', {}, several ? '' : `${duration(total(runs[0]))} in all`)), ...runs.slice(0, most).flatMap(of))];
    const profile = runs[view.run].profile;
    if (profile) {
      const whole = Object.values(profile).reduce((sum, n) => sum + n, 0);
      const name = several ? `${runs[view.run].name}, ` : '';
      cards.push(el('div', { class: 'card', style: 'margin-top:18px' }, el('h2', {}, 'One step, taken apart', el('small', {}, `${name}${trimmed(1000 * whole, 4)} ms`)), ...stack(profile, STAGES)));
    }
    fill('time', ...cards);
  };

  const tabs = () => (several ? [el('div', { class: 'tabs' }, ...runs.map((run, at) => {
    const tab = el('button', { 'aria-pressed': at === view.run }, run.name);
    tab.addEventListener('click', () => { view.run = at; view.sample = -1; charts(); times(); samples(); });
    return tab;
  }))] : []);
  const samples = () => {
    const made = runs[view.run].samples;
    if (!runs.some((run) => run.samples.length)) { fill('samples'); return; }
    const at = view.sample < 0 ? made.length - 1 : view.sample;
    const steps = made.map(([step], index) => {
      const button = el('button', { 'aria-pressed': index === at }, `step ${grouped(step)}`);
      button.addEventListener('click', () => { view.sample = index; samples(); });
      return button;
    });
    fill('samples', el('div', { class: 'card' }, el('div', { class: 'row' }, el('h2', {}, 'Samples')), ...tabs(), el('div', { class: 'steps' }, ...steps), el('pre', {}, made.length ? made[at][1].trimEnd() : 'none yet')));
  };
  const config = () => {
    const keys = [...new Set(runs.flatMap((run) => run.config.map(([key]) => key)))];
    const differs = new Set(several ? keys.filter((key) => new Set(runs.map((run) => JSON.stringify(valueOf(run, key)))).size > 1) : []);
    const only = el('input', { type: 'checkbox' });
    only.checked = view.same;
    only.addEventListener('change', () => { view.same = only.checked; config(); });
    const rows = keys.filter((key) => !view.same || differs.has(key)).map((key) => el('tr', {}, el('td', { class: 'key' }, key),
      ...runs.map((run) => el('td', { class: differs.has(key) ? 'differs' : '' }, written(valueOf(run, key))))));
    const head = several ? [el('thead', {}, el('tr', {}, el('th', {}, ''), ...runs.map((run, at) => el('th', {}, dot(at), ` ${run.name}`))))] : [];
    fill('config', el('div', { class: 'card' }, el('div', { class: 'row' }, el('h2', {}, 'Configuration', el('small', {}, several ? '' : runs[0].path)),
      ...(several ? [el('label', {}, only, 'only what differs')] : [])), el('div', { class: 'scroll' }, el('table', {}, ...head, el('tbody', {}, ...rows)))));
  };

  const charts = () => {
    const cards = CHARTS.map(draw).filter((card) => card);
    // Cards stand in pairs; one that would stand alone takes the row.
    const paired = cards.filter((card) => !card.classList.contains('wide'));
    if (paired.length % 2) paired[paired.length - 1].classList.add('wide');
    fill('charts', ...cards);
    cards.forEach((card) => card.drawIn());
  };
  const legend = () => {
    if (!several) return;
    fill('legend', ...runs.map((run, at) => {
      const button = el('button', { class: view.hidden.has(at) ? 'off' : '', title: 'Show or hide this run' }, dot(at), run.name);
      button.addEventListener('click', () => {
        if (view.hidden.has(at)) view.hidden.delete(at); else view.hidden.add(at);
        legend(); charts(); table();
      });
      return button;
    }));
  };

  const controls = document.getElementById('controls');
  controls.addEventListener('input', () => {
    view.axis = controls.axis.value;
    view.smooth = Number(controls.smooth.value);
    view.log = controls.log.checked;
    charts();
  });
  document.getElementById('theme').addEventListener('click', () => {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
    root.dataset.theme = dark ? 'light' : 'dark';
  });
  let drawn = window.innerWidth;
  window.addEventListener('resize', () => { if (window.innerWidth !== drawn) { drawn = window.innerWidth; charts(); } });
  legend();
  if (several) table(); else figures();
  charts(); times(); samples(); config();
})();
