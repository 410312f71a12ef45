#!/bin/bash
# Kills, signals, bad numbers and short memory on a card: what tests/stories/keep_my_work.rs does on a processor. Prints a short table.
#   tools/survive_on_a_card.sh target/debug/ironmill
B=$(realpath "${1:?the program}"); W=$(mktemp -d); cd "$W" || exit 1
cat > c.toml <<'T'
seed = 5
[tokenizer]
vocab_size = 2000
[data]
input = "builtin:stories:2MB"
validation = 0.05
[model]
layers = 8
heads = 8
width = 512
context = 256
dropout = 0.1
[train]
steps = 100
batch_tokens = 32768
micro_batch = 32
precision = "bf16"
device = "cuda"
eval_every = 25
eval_tokens = 16384
sample_every = 0
checkpoint_every = 10
keep_every = 35
warmup = 10
[sample]
max_tokens = 8
T
t0=$(date +%s.%N); el() { echo "$(date +%s.%N) $t0" | awk '{printf "%.1f s", $1-$2}'; }
same() { cmp -s $1/checkpoints/step-00000100/model.safetensors $2/checkpoints/step-00000100/model.safetensors && cmp -s $1/checkpoints/step-00000100/trainer/optimizer.safetensors $2/checkpoints/step-00000100/trainer/optimizer.safetensors && cmp -s $1/checkpoints/step-00000100/trainer/state.json $2/checkpoints/step-00000100/trainer/state.json && echo SAME || echo DIFFERENT; }
lines() { wc -l < $1/metrics.jsonl 2>/dev/null || echo 0; }
$B run c.toml --out straight --quiet > /dev/null 2> e || tail -3 e; echo "straight 100 steps done at $(el)"; tail -1 straight/metrics.jsonl
# kernels.txt holds the choices of algorithms: the same ones for all runs
mkdir -p killed stopped; cp -r straight/data straight/tokenizer.json straight/tokenizer.inputs.json straight/kernels.txt killed/ 2>/dev/null; cp -r straight/data straight/tokenizer.json straight/tokenizer.inputs.json straight/kernels.txt stopped/ 2>/dev/null
for k in 1 2 3 4 5; do
  $B run c.toml --out killed --quiet > /dev/null 2> e & P=$!
  goal=$((k*17-5)); for i in $(seq 2000); do [ "$(lines killed)" -ge $goal ] && break; kill -0 $P 2>/dev/null || { echo ended early; tail -3 e; break; }; sleep 0.01; done
  sleep 0.0$((RANDOM%9)); kill -9 $P; wait $P 2>/dev/null; echo "kill $k after $(lines killed) lines, checkpoints: $(ls killed/checkpoints 2>/dev/null | tr '\n' ' ')"
done
$B run c.toml --out killed --quiet > /dev/null 2> e || tail -3 e; echo "5 x kill -9 and resume in bf16: $(same straight killed) at $(el)"
for s in TERM USR1; do
$B run c.toml --out stopped --quiet > /dev/null 2> e & P=$!
for i in $(seq 2000); do [ "$(lines stopped)" -ge $([ $s = TERM ] && echo 23 || echo 61) ] && break; sleep 0.01; done
a=$(date +%s.%N); kill -$s $P; wait $P; echo "SIG$s: exit $? after $(echo "$(date +%s.%N) $a" | awk '{printf "%.2f s", $1-$2}'): $(tail -1 e)"
done
$B run c.toml --out stopped --quiet > /dev/null 2> e || tail -3 e; echo "stopped twice and resumed: $(same straight stopped) at $(el)"
mkdir -p oom; cp -r straight/data straight/tokenizer.json straight/tokenizer.inputs.json oom/
IRONMILL_FAULT=oom=30:8 $B run c.toml --out oom > /dev/null 2> e; echo "oom fault: exit $?"; grep micro_batch e | head -3; tail -1 oom/metrics.jsonl | cut -c1-60
echo "at $(el)"
for p in stop skip rollback; do mkdir -p nan-$p; cp -r straight/data straight/tokenizer.json straight/tokenizer.inputs.json straight/kernels.txt nan-$p/
IRONMILL_FAULT=nan=4480 $B run c.toml --out nan-$p --train.on-nonfinite $p > /dev/null 2> e; echo "nan in step 36, $p: exit $?; $(grep -h -E 'step 36|back to' e | tail -1 | cut -c1-150)"; done
cmp -s straight/checkpoints/step-00000035/model.safetensors nan-stop/checkpoints/step-00000035/model.safetensors && cmp -s straight/checkpoints/step-00000035/trainer/optimizer.safetensors nan-stop/checkpoints/step-00000035/trainer/optimizer.safetensors && echo "stop: weights and moments of step 35 are those of the straight run" || echo "stop: DIFFERENT"
echo "at $(el)"
# A real shortage: one process holds most of the card, and another plans with what was free before.
F="--data.input $W/straight/data --tokenizer.file $W/straight/tokenizer.json"
big="train c.toml $F --model.layers 12 --model.heads 12 --model.width 768 --model.context 1024 --train.eval-every 0 --train.checkpoint-every 0 --train.precision fp32 --train.recompute none"
$B $big --out plan --dry-run --train.batch-tokens 262144 --train.micro-batch 128 2>&1 | grep -E "total|activ"
(timeout 40 $B $big --out r1 --quiet --train.batch-tokens 262144 --train.micro-batch 128 --train.steps 3 > /dev/null 2> e1; echo "first: exit $?"; grep -h micro_batch e1) &
(timeout 40 $B $big --out r2 --quiet --train.batch-tokens 262144 --train.micro-batch 128 --train.steps 3 > /dev/null 2> e2; echo "second: exit $?"; grep -h micro_batch e2) & wait
echo "at $(el)"
$B $big --out auto --train.batch-tokens 524288 --train.micro-batch auto --train.steps 2 > /dev/null 2> e; echo "auto: exit $?"; grep -E "micro_batch|of memory" e
$B $big --out never --train.batch-tokens 1048576 --train.micro-batch 1024 --train.steps 2 > /dev/null 2> e; echo "predicted: exit $?"; tail -2 e
echo "all at $(el)"
