"""The style of an HTML report: two palettes, one column, print."""

from __future__ import annotations

from typing import Final

__all__ = ["STYLE"]

# Contrast on the page's ground: text 12 and more, muted text and tones 4.6 and more, in both palettes.
STYLE: Final = """
:root {
  color-scheme: light dark;
  --page: #fff; --panel: #f6f7f8; --ink: #16191d; --muted: #5a626c; --line: #dfe3e7; --soft: #eceef1;
  --accent: #2c63b0; --good: #187347; --bad: #b3261e; --warn: #85590b;
  --good-ground: #e9f5ee; --bad-ground: #fcedeb; --warn-ground: #fbf3e2;
  --mono: ui-monospace, "SF Mono", SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #121416; --panel: #1a1d20; --ink: #e7eaec; --muted: #9aa4ae; --line: #30363c; --soft: #23282c;
    --accent: #74a9ee; --good: #57c78d; --bad: #ff8f85; --warn: #e2b457;
    --good-ground: #14271d; --bad-ground: #301918; --warn-ground: #2b2314;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; scroll-behavior: smooth; }
body {
  margin: 0; background: var(--page); color: var(--ink); overflow-wrap: anywhere;
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Liberation Sans", Arial, sans-serif;
}
main { max-width: 60rem; margin: 0 auto; padding: 2.25rem 1.25rem 4rem; }
header p.tool { margin: 0 0 .3rem; color: var(--muted); font-size: .87rem; }
h1 { margin: 0; font-size: 1.7rem; line-height: 1.2; font-weight: 650; letter-spacing: -.015em; }
h2 { margin: 0 0 .35rem; font-size: 1.12rem; line-height: 1.3; font-weight: 650; letter-spacing: -.005em; }
h3 { margin: 0; font-size: .87rem; font-weight: 600; }
p { margin: 0 0 .75rem; max-width: 50rem; text-wrap: pretty; }
a { color: var(--accent); text-decoration-thickness: 1px; text-underline-offset: .18em; }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
.title { display: flex; flex-wrap: wrap; align-items: center; gap: .5rem .9rem; }
.verdict { padding: .12rem .6rem; border-radius: .3rem; font-weight: 700; font-size: .87rem; letter-spacing: .05em; }
.verdict.good { background: var(--good-ground); color: var(--good); }
.verdict.bad { background: var(--bad-ground); color: var(--bad); }
.verdict.warn { background: var(--warn-ground); color: var(--warn); }
.good { color: var(--good); } .bad { color: var(--bad); } .warn { color: var(--warn); } .quiet { color: var(--muted); }
.why { margin: 1.1rem 0 0; padding: .75rem 1rem; border-left: 3px solid; border-radius: 0 .3rem .3rem 0; }
.why.bad { background: var(--bad-ground); border-color: var(--bad); color: var(--ink); }
.why.warn { background: var(--warn-ground); border-color: var(--warn); color: var(--ink); }
.why ul { margin: 0; padding-left: 1.1rem; } .why li + li { margin-top: .25rem; } .why p { margin: 0; max-width: none; }
.levels { display: grid; grid-template-columns: repeat(3, 1fr); margin: 1.35rem 0 0; padding: 0; list-style: none;
  border: 1px solid var(--line); border-radius: .45rem; overflow: hidden; }
.levels li { box-shadow: 1px 1px 0 0 var(--line); padding: .65rem .85rem .7rem; }
.levels .key { display: flex; justify-content: space-between; gap: .5rem; font-size: .87rem; font-weight: 600; }
.levels .key b { font-weight: 600; color: var(--muted); margin-right: .4em; }
.levels .what { color: var(--muted); font-size: .87rem; line-height: 1.4; margin-top: .1rem; }
.levels .state::before { content: ""; display: inline-block; width: .5em; height: .5em; margin-right: .4em;
  border-radius: 50%; background: currentColor; vertical-align: .08em; }
.levels .state.quiet::before { background: none; box-shadow: inset 0 0 0 1.5px currentColor; }
nav { margin: 1rem 0 0; font-size: .87rem; display: flex; flex-wrap: wrap; gap: .15rem 1.05rem; }
nav a { text-decoration: none; padding: .1rem 0; } nav a:hover { text-decoration: underline; }
section { margin-top: 2.1rem; padding-top: 1.5rem; border-top: 1px solid var(--line); }
section > .lead { color: var(--muted); }
section > * + * { margin-top: 1rem; }
section > h2 + * { margin-top: 0; }
.beside { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 22rem), 1fr));
  gap: 1.25rem 2.25rem; align-items: start; }
.beside > * { min-width: 0; }
figure { margin: 0; max-width: 29rem; }
figcaption { display: flex; flex-wrap: wrap; justify-content: space-between; gap: .15rem 1rem; margin-bottom: .35rem; }
.legend { display: flex; flex-wrap: wrap; gap: .1rem .85rem; color: var(--muted); font-size: .8rem; }
.legend svg { width: .75rem; height: .75rem; vertical-align: -.08em; margin-right: .3rem; }
svg.chart { display: block; width: 100%; height: auto; overflow: visible; }
svg text { font: 11.5px system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", Arial, sans-serif;
  fill: var(--muted); font-variant-numeric: tabular-nums; }
svg text.value { fill: var(--ink); } svg text.name { fill: var(--ink); }
svg .grid { stroke: var(--soft); } svg .base { stroke: var(--line); }
svg .mark { stroke: var(--ink); stroke-width: 2; } svg .reference { stroke: var(--muted); stroke-dasharray: 3 3; }
svg .fill { fill: var(--accent); stroke: var(--accent); }
svg .fill.good { fill: var(--good); stroke: var(--good); } svg .fill.bad { fill: var(--bad); stroke: var(--bad); }
svg .fill.warn { fill: var(--warn); stroke: var(--warn); }
.scroll { overflow-x: auto; background:
  linear-gradient(to right, var(--page) 40%, transparent) 0 0 / 2.5rem 100% no-repeat local,
  linear-gradient(to left, var(--page) 40%, transparent) 100% 0 / 2.5rem 100% no-repeat local,
  linear-gradient(to right, var(--line), transparent) 0 0 / .7rem 100% no-repeat scroll,
  linear-gradient(to left, var(--line), transparent) 100% 0 / .7rem 100% no-repeat scroll; }
table { border-collapse: collapse; font-size: .87rem; font-variant-numeric: tabular-nums; min-width: min(100%, 28rem); }
caption { text-align: left; font-weight: 600; font-size: .87rem; padding: 0 0 .25rem; }
th, td { padding: .3rem .8rem .3rem 0; text-align: right; vertical-align: top; white-space: nowrap; }
th { color: var(--muted); font-weight: 500; border-bottom: 1px solid var(--line); vertical-align: bottom; }
td { border-bottom: 1px solid var(--soft); } tr:last-child td { border-bottom: 0; }
th:last-child, td:last-child { padding-right: 0; }
th.word, td.word { text-align: left; } td.long { white-space: normal; min-width: 14rem; }
td.digest { font: .73rem/1.8 var(--mono); }
dl { display: grid; grid-template-columns: fit-content(14rem) minmax(0, 1fr); gap: .18rem 1.25rem;
  margin-bottom: 0; font-size: .87rem; }
dt { color: var(--muted); } dd { margin: 0; font-variant-numeric: tabular-nums; }
ul.items { margin-bottom: 0; padding-left: 1.1rem; font-size: .87rem; }
pre { margin-bottom: 0; padding: .7rem .9rem; background: var(--panel); border: 1px solid var(--soft);
  border-radius: .35rem; font: .8rem/1.55 var(--mono); white-space: pre-wrap; overflow-wrap: anywhere; }
.excerpt { border: 1px solid var(--line); border-radius: .35rem; font-size: .87rem; }
.excerpt h3 { padding: .45rem .8rem; border-bottom: 1px solid var(--line); background: var(--panel);
  border-radius: .35rem .35rem 0 0; }
.excerpt dl { grid-template-columns: fit-content(10rem) minmax(0, 1fr); padding: .5rem .8rem; font-size: .8rem; }
.excerpt dd { font-family: var(--mono); line-height: 1.55; white-space: pre-wrap; }
.excerpt dd.before { color: var(--muted); }
.excerpt dl, .beside dl { margin-top: 0; }
.excerpt p { margin: 0; padding: 0 .8rem .55rem; color: var(--muted); font-size: .8rem; }
footer { margin-top: 2.5rem; padding-top: 1rem; border-top: 1px solid var(--line); color: var(--muted);
  font-size: .8rem; }
@media (max-width: 40rem) {
  main { padding: 1.25rem 1rem 3rem; } h1 { font-size: 1.35rem; }
  .levels { grid-template-columns: 1fr; }
  dl { grid-template-columns: fit-content(8.5rem) minmax(0, 1fr); gap: .18rem .9rem; }
  section { margin-top: 1.6rem; padding-top: 1.25rem; }
}
@media (min-width: 40.01rem) and (max-width: 52rem) { .levels { grid-template-columns: repeat(2, 1fr); } }
@media print {
  :root { --page: #fff; --panel: #f6f7f8; --ink: #000; --muted: #444; --line: #bbb; --soft: #ddd; --accent: #2c63b0;
    --good: #187347; --bad: #b3261e; --warn: #85590b; --good-ground: #fff; --bad-ground: #fff; --warn-ground: #fff; }
  body { font-size: 10pt; } main { max-width: none; padding: 0; } nav { display: none; }
  section, figure, .excerpt, tr, li, p { break-inside: avoid; } section { break-inside: auto; }
  h2, .lead, caption { break-after: avoid; }
  .scroll { overflow: visible; background: none; } td, th { white-space: normal; overflow-wrap: normal; }
  table { font-size: .8rem; } td.digest { overflow-wrap: anywhere; } svg * { print-color-adjust: exact; }
}
""".strip()
