#!/usr/bin/env python3
"""Makes a small MediaWiki dump, in the form of Wikimedia's pages-articles files, to try examples/wiki.toml on.

    python3 tools/make_wiki_dump.py wiki.xml.bz2 [--articles 2000] [--seed 1]

The articles are about made-up towns, people, rivers and animals, with the marks that real ones have: infoboxes, references,
tables, pictures, links, headings, lists, categories; and with the pages that are no articles: talk, templates, redirects.
The same arguments give the same bytes.
"""

import argparse
import bz2
import random
from xml.sax.saxutils import escape

SYLLABLES = "ar bel cor dan el fal gor hin is jor kel lor mar nor ol per qui ros sal tor ul ven wyn yor zan".split()
TRADES = "baker,painter,smith,sailor,teacher,weaver,miller,poet,doctor,gardener".split(",")
ANIMALS = "heron,otter,fox,owl,hare,trout,beetle,falcon".split(",")
COUNTRIES = "Norland,Estria,Velmark,Osterra,Calden".split(",")
MONTHS = "January,March,May,July,September,November".split(",")

HEAD = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" version="0.11" xml:lang="en">
  <siteinfo>
    <sitename>Tryout</sitename>
    <namespaces>
      <namespace key="-2" case="first-letter">Media</namespace>
      <namespace key="0" case="first-letter" />
      <namespace key="1" case="first-letter">Talk</namespace>
      <namespace key="6" case="first-letter">File</namespace>
      <namespace key="10" case="first-letter">Template</namespace>
      <namespace key="14" case="first-letter">Category</namespace>
    </namespaces>
  </siteinfo>
"""


def name(dice):
    return "".join(dice.choices(SYLLABLES, k=dice.randint(2, 3))).capitalize()


def town(dice, title, others):
    country, river, people = dice.choice(COUNTRIES), dice.choice(others), dice.randint(2, 90) * 1000
    year = dice.randint(1100, 1900)
    return f"""{{{{Infobox settlement
| name = {title}
| country = [[{country}]]
| population = {people}
}}}}
[[File:{title}.jpg|thumb|The market of [[{title}]] in {year + 40}.]]
'''{title}''' is a town in [[{country}]], on the river [[{river}]].<ref>{{{{cite web|url=https://example.org/{title}|title=Towns}}}}</ref> It has about {people:,} inhabitants&nbsp;and lies {dice.randint(2, 400)} metres above the sea.

== History ==
The town was founded in {year} by a {dice.choice(TRADES)} from [[{dice.choice(others)}]]. In {year + 57} a fire destroyed the old bridge, and the people built a new one of stone.<ref name="old" /> The railway came in {year + 130}.

== Economy ==
Most people of {title} work as a {dice.choice(TRADES)} or a {dice.choice(TRADES)}. The market is held every week.
{{| class="wikitable"
|-
! Year !! Inhabitants
|-
| {year + 100} || {people // 3}
|}}

== See also ==
* [[{dice.choice(others)}]]
* [[{dice.choice(others)}|The neighbouring town]]

== References ==
{{{{reflist}}}}

[[Category:Towns in {country}]]
"""


def person(dice, title, others):
    born, trade, home = dice.randint(1500, 1950), dice.choice(TRADES), dice.choice(others)
    return f"""'''{title} {name(dice)}''' ({{{{IPA|{title.lower()}}}}}; {dice.randint(1, 28)} {dice.choice(MONTHS)} {born} &ndash; {born + dice.randint(40, 90)}) was a {trade} from [[{home}]].

== Life ==
''{title}'' was born in {home}, where the family owned a small house near the river. At the age of {dice.randint(9, 19)} the young {trade} left for [[{dice.choice(others)}]] and learned the trade from a {dice.choice(TRADES)}.<!-- source? --> After {dice.randint(2, 20)} years the return was celebrated in the whole town.

=== Works ===
# The first house by the [[{dice.choice(others)}]]
# A letter to the {dice.choice(TRADES)} of {home}

== Memory ==
A street in {home} has the name of {title}. See [https://example.org/{title} the archive] for letters.

[[Category:People]]
"""


def river(dice, title, others):
    length = dice.randint(20, 900)
    return f"""The '''{title}''' is a river in [[{dice.choice(COUNTRIES)}]]. It is {{{{convert|{length}|km|mi}}}} long and flows past [[{dice.choice(others)}]] and [[{dice.choice(others)}]].

== Nature ==
The {dice.choice(ANIMALS)} and the {dice.choice(ANIMALS)} live on its banks. In {dice.choice(MONTHS)} the water is high, and the meadows are under water for weeks.

== Use ==
Boats carry salt and timber on the {title}. A mill has stood at its mouth since {dice.randint(1200, 1800)}.

{{{{Rivers}}}}
[[Category:Rivers]]
"""


def page(number, title, namespace, text, redirect=None):
    target = f'    <redirect title="{escape(redirect)}" />\n' if redirect else ""
    return f"""  <page>
    <title>{escape(title)}</title>
    <ns>{namespace}</ns>
    <id>{number}</id>
{target}    <revision>
      <id>{number}</id>
      <timestamp>2026-01-01T00:00:00Z</timestamp>
      <contributor><username>Someone</username><id>1</id></contributor>
      <model>wikitext</model>
      <format>text/x-wiki</format>
      <text bytes="{len(text.encode())}" xml:space="preserve">{escape(text)}</text>
    </revision>
  </page>
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--articles", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    dice = random.Random(args.seed)
    titles = sorted({name(dice) for _ in range(args.articles)})
    dice.shuffle(titles)
    opened = bz2.open(args.out, "wt", encoding="utf-8") if args.out.endswith(".bz2") else open(args.out, "w", encoding="utf-8")
    with opened as out:
        out.write(HEAD)
        for number, title in enumerate(titles, 1):
            write = (town, person, river)[number % 3]
            out.write(page(number, title, 0, write(dice, title, titles)))
            if number % 10 == 0:
                out.write(page(10**6 + number, f"Talk:{title}", 1, "What do you think about this article?"))
            if number % 15 == 0:
                out.write(page(2 * 10**6 + number, title + " (old)", 0, f"#REDIRECT [[{title}]]", title))
        out.write(page(3 * 10**6, "Template:Rivers", 10, "{{navbox}}"))
        out.write("</mediawiki>\n")
    print(f"{args.out}: {len(titles)} articles")


if __name__ == "__main__":
    main()
