"""How the page of a table looks: light and dark, wide and narrow, and on paper."""

STYLE = """
:root {
  color-scheme: light dark;
  --ground: #f7f8f9; --card: #ffffff; --ink: #1c2126; --muted: #59636d; --line: #e1e5e9; --soft: #f1f4f6;
  --accent: #0a5c93; --published: #6f5a2e; --published-ground: #faf6ec;
  --better: #0b5a3c; --better-ground: #e0f3ea; --worse: #96350f; --worse-ground: #fdeae1;
  --failed: #ad1f14; --failed-ground: #fdeceb;
  --mono: ui-monospace, "SF Mono", "DejaVu Sans Mono", Menlo, Consolas, monospace;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ground: #121518; --card: #1a1e22; --ink: #e5e9ec; --muted: #9aa5af; --line: #2d343a; --soft: #20262b;
    --accent: #7fc1ec; --published: #d2bf90; --published-ground: #24221b;
    --better: #8fdcb5; --better-ground: #14322a; --worse: #f4b394; --worse-ground: #3a2219;
    --failed: #ff9d94; --failed-ground: #3a1d1b;
  }
}
* { box-sizing: border-box; }
html { scroll-padding-top: 1rem; }
body { margin: 0; background: var(--ground); color: var(--ink); font: 1rem/1.55 system-ui, "Segoe UI", Roboto,
  "Helvetica Neue", "Liberation Sans", sans-serif; overflow-wrap: anywhere; }
header, main { max-width: 84rem; margin: 0 auto; padding: 0 clamp(1rem, 3vw, 2rem); }
header { padding-top: clamp(1.5rem, 4vw, 3rem); }
main { padding-bottom: 4rem; }
h1 { font-size: clamp(1.4rem, 3.2vw, 2rem); line-height: 1.2; letter-spacing: -.015em; margin: 0 0 1.25rem;
  text-wrap: balance; }
h2 { font-size: 1.2rem; margin: 2.75rem 0 .75rem; letter-spacing: -.01em; }
h3 { font-size: 1rem; margin: 1.75rem 0 .5rem; }
h4 { font-size: .75rem; margin: 0 0 .35rem; color: var(--muted); font-weight: 600; text-transform: uppercase;
  letter-spacing: .05em; }
p { margin: .5rem 0; }
a { color: var(--accent); text-underline-offset: .18em; text-decoration-thickness: .06em; }
a:focus-visible, summary:focus-visible, .scroll:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px;
  border-radius: .25rem; }

.sources { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(19rem, 100%), 1fr)); gap: 1rem; }
.sources > div { background: var(--card); border: 1px solid var(--line); border-left: 4px solid var(--accent);
  border-radius: .5rem; padding: .7rem 1rem; }
.sources > .published { border-left-color: var(--published); background: var(--published-ground); }
.sources dt { font-weight: 650; }
.sources .published dt { color: var(--published); font-style: italic; }
.sources dd { margin: .1rem 0 0; font-size: .92rem; color: var(--muted); }
.progress { color: var(--muted); font-size: .92rem; margin-top: .9rem; }

.scroll { overflow-x: auto; background: var(--card); border: 1px solid var(--line); border-radius: .6rem; }
table { border-collapse: separate; border-spacing: 0; width: 100%; font-variant-numeric: tabular-nums;
  overflow-wrap: normal; }
caption { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
th, td { padding: .5rem .75rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
tbody tr:last-child > * { border-bottom: 0; }
thead th { font-size: .82rem; font-weight: 500; color: var(--muted); padding-block: .3rem; border-bottom: 0; }
thead tr:last-child th { border-bottom: 1px solid var(--line); padding-bottom: .5rem; }
thead tr:first-child th { padding-top: .6rem; }
thead th.column { font-size: .95rem; font-weight: 650; color: var(--ink); }
thead th[colspan] { text-align: center; }
.first { border-left: 1px solid var(--line); }
tbody th, td.corner { text-align: left; position: sticky; left: 0; background: var(--card); z-index: 1; }
tbody th { font-weight: 600; }
tbody tr:hover > * { background: var(--soft); }
.results tbody > tr > * { vertical-align: baseline; }
td.measured a { color: inherit; text-decoration: none; display: inline-block; border-radius: .3rem;
  padding: .1rem .35rem; margin: -.1rem -.35rem; }
td.measured a:hover { color: var(--accent); text-decoration: underline; }
.deviation, .partial { color: var(--muted); font-size: .86em; font-weight: 400; }
td.better .number { font-weight: 700; color: var(--better); background: var(--better-ground); }
td.better .deviation { color: inherit; }
td.worse .number { color: var(--worse); background: var(--worse-ground); }
td.nothing { color: var(--muted); }
td.failed .number { color: var(--failed); }
td.published, th.published { font-style: italic; color: var(--published); background: var(--published-ground);
  font-size: .88em; }
.seeds { display: block; margin-top: .15rem; font-size: .74rem; line-height: 1.4; color: var(--muted); }
td.measured .seeds a { padding: .12rem .32rem; margin: 0; color: var(--muted); }
td.measured .seeds a.failed { color: var(--failed); text-decoration: line-through; }
td.measured .seeds a.missing { opacity: .6; }
td.measured .seeds a:hover { color: var(--accent); background: var(--soft); }
sup { line-height: 0; }
sup a { padding: 0 .15rem; }

.notes { color: var(--muted); font-size: .92rem; padding-left: 1.2rem; max-width: 52rem; }
.notes li { margin: .3rem 0; }
.notes :target { color: var(--failed); }
.differences td, .differences th { font-size: .92rem; }
.differences td:last-child, .differences th:last-child { white-space: normal; min-width: 14rem;
  color: var(--muted); font-size: .84rem; }
.differences .words { text-align: left; }
.differences tr.survives td:not(:last-child) { font-weight: 650; }
svg.forest { display: block; width: 8.5rem; height: 1rem; color: var(--muted); }
tr.survives svg.forest { color: var(--accent); }

details.run { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; margin: .5rem 0; }
details.run:target { border-color: var(--accent); box-shadow: 0 0 0 1px var(--accent); }
details.run > summary { padding: .6rem 1rem; cursor: pointer; display: flex; flex-wrap: wrap; gap: .25rem .75rem;
  align-items: baseline; }
details.run > summary::before { content: "›"; color: var(--muted); font-weight: 700; transition: transform .15s; }
details.run[open] > summary::before { transform: rotate(90deg); }
details.run > summary::-webkit-details-marker { display: none; }
summary .title { font-weight: 600; }
summary .scores { color: var(--muted); font-size: .9rem; margin-left: auto; font-variant-numeric: tabular-nums; }
.state { font-size: .78rem; font-weight: 600; padding: .05rem .5rem; border-radius: 1rem; color: var(--muted);
  background: var(--soft); }
.state.done { color: var(--better); background: var(--better-ground); }
.state.failed { color: var(--failed); background: var(--failed-ground); }
.body { padding: .25rem 1rem 1rem; border-top: 1px solid var(--line); }
.body > * { margin-top: 1rem; }
.reason { color: var(--failed); background: var(--failed-ground); padding: .5rem .75rem; border-radius: .4rem; }
.columns { display: flex; flex-wrap: wrap; gap: 1.25rem 5rem; }
.columns dl { display: grid; grid-template-columns: auto 1fr; gap: .2rem 1rem; margin: 0; font-size: .92rem; }
.columns dt { color: var(--muted); }
.columns dd { margin: 0; font-variant-numeric: tabular-nums; }
.pictures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(22rem, 100%), 1fr)); gap: 1rem; }
figure { margin: 0; max-width: 40rem; }
figcaption { font-size: .86rem; color: var(--muted); margin-bottom: .35rem; }
figure img { display: block; width: 100%; height: auto; background: #fff; border: 1px solid var(--line);
  border-radius: .4rem; padding: .4rem; }
pre { background: var(--soft); border-radius: .4rem; padding: .7rem .9rem; margin: 0; font: .82rem/1.5 var(--mono);
  white-space: pre-wrap; }
pre.config { max-height: 24rem; overflow: auto; }
.body details summary { cursor: pointer; color: var(--accent); font-size: .92rem; margin-bottom: .4rem; }
.back { font-size: .88rem; }
footer { max-width: 84rem; margin: 0 auto; padding: 0 clamp(1rem, 3vw, 2rem) 2rem; color: var(--muted);
  font-size: .86rem; }
@media (max-width: 40rem) {
  th, td { padding: .45rem .55rem; }
  summary .scores { margin-left: 0; width: 100%; }
}
@media print {
  body { background: none; }
  .scroll { overflow: visible; border: 0; }
  .back, .seeds { display: none; }
}
"""

SCRIPT = """
const reveal = () => {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target && target.matches("details")) { target.open = true; target.scrollIntoView(); }
};
addEventListener("hashchange", reveal);
addEventListener("click", event => {
  const link = event.target.closest('a[href^="#"]');
  if (link && link.hash === location.hash) reveal();
});
reveal();
"""
"""Opens the run that a link leads to; without it the page is the same, but a reader opens the run himself."""
