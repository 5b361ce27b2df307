'use strict';
// The report as a whole: its head, what the reader presses, and its parts.

// The search box and what it means are one place.
function searchFor(words) {
  byId('search').value = words;
  byId('search').dispatchEvent(new Event('input'));
}

// A sentence begins with a capital; an identifier or a name stays as it is.
function asSentence(text) {
  return text.replace(/^[a-z]+(?=[ ,;.]|: |$)/, (word) => word.charAt(0).toUpperCase() + word.slice(1));
}

function verdictElements({headline, paragraphs, remedies}) {
  const parts = [element('h2', {textContent: asSentence(headline)}), ...paragraphs.map((text) => element('p', {textContent: text}))];
  if (remedies.length > 0) parts.push(element('ol', {className: 'remedies'}, remedies.map(remedyElement)));
  return parts;
}

function remedyElement({title, evidence, setting}) {
  const parts = [element('h3', {textContent: asSentence(title)}), element('p', {textContent: evidence})];
  if (setting !== '') {
    const button = element('button', {type: 'button', textContent: 'Copy'}, [], {'aria-label': `Copy ${setting}`});
    button.addEventListener('click', async () => {
      await copyText(setting);
      button.textContent = 'Copied';
    });
    parts.push(element('div', {className: 'setting'}, [element('code', {textContent: setting}), button]));
  }
  return element('li', {}, parts);
}

// A report from a file may not have the clipboard: then it copies as editors did.
async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const field = element('textarea', {value: text});
    document.body.append(field);
    field.select();
    document.execCommand('copy');
    field.remove();
  }
}

function figure(title, value, note = '') {
  const parts = [value];
  if (note !== '') parts.push(element('span', {className: 'note', textContent: note}));
  return element('dl', {className: 'figure'}, [element('dt', {textContent: title}), element('dd', {}, parts)]);
}

class HtmlReport {
  constructor(report, columns) {
    this.report = report;
    this.columns = columns;
    this.runs = new Map();
    this.shared = new Shared();
    theme.start();
    this.head();
    this.timeline = new Timeline(this.shared);
    this.maps = new MemoryMaps(this.shared);
    this.flame = new FlameGraph(this.shared);
    this.sites = new SitesTable(this.shared);
    this.listen();
    this.shared.on('run', () => this.showRun());
    this.shared.on('moment', () => this.showMoment());
    if (report.runs.length > 0) this.shared.setRun(this.run(0));
    if (report.runs.length === 2 && report.compares) new Comparison([this.run(0), this.run(1)], report.tables.length > 0);
  }

  // Runs are decoded when they are first shown.
  run(number) {
    if (!this.runs.has(number)) this.runs.set(number, new Run(this.report.runs[number], this.columns, this.report.texts));
    return this.runs.get(number);
  }

  head() {
    const {title, command, version, verdict, tables, runs} = this.report;
    document.title = `${title} – cachalot`;
    byId('title').textContent = title;
    byId('origin').textContent = `Written by ${command}, cachalot ${version}. This file is complete: it loads nothing.`;
    if (verdict.headline !== '') {
      byId('verdict').replaceChildren(...verdictElements(verdict));
      byId('verdict').classList.toggle('bad', verdict.bad);
      byId('verdict').hidden = false;
    }
    byId('tables').append(...tables.map(reportTable));
    if (this.report.compares) byId('verdict').after(byId('comparison'), byId('tables'));
    byId('run').append(...runs.map((run, i) => element('option', {value: String(i), textContent: run.name})));
    document.querySelector('.chosen-run').hidden = runs.length < 2;
    for (const part of document.querySelectorAll('main > section.card:not(#verdict):not(#comparison), #figures, .find, #help')) part.hidden = runs.length === 0;
  }

  showRun() {
    const {run, pyramid} = this.shared;
    const gpu = run.gpu === '' ? `device ${run.device}` : `device ${run.device}, ${run.gpu}`;
    const total = run.total_bytes === null ? '' : ` of ${bytesText(run.total_bytes)}`;
    byId('subtitle').textContent = `${gpu}${total} · ${countOf(run.events, 'event')}${run.timeText(run.events).replace(', ', ' · ')}`;
    if (!run.has_times && this.shared.byTime) this.setAxis(false);
    document.querySelector('.switch').hidden = !run.has_times;
    byId('moment').max = String(run.events);
    byId('to-oom').hidden = run.ooms.length === 0;
    const hasCalls = run.calls.knownCount > 0;
    for (const part of document.querySelectorAll('.of-calls, .find')) part.hidden = !hasCalls;
    byId('what-shows-it').textContent = hasCalls ? 'that the map, the flame graph and the table show' : run.layouts.length > 1 ? 'that the maps show' : 'that the map shows';
    byId('figures').replaceChildren(...this.figures(run, pyramid));
  }

  figures(run, pyramid) {
    const all = [figure('Requested, peak', bytesText(pyramid.peakTotal), `at event ${countText(pyramid.peakTotalMoment)}`)];
    all.push(figure('Allocated, peak', bytesText(pyramid.maxima[pyramid.allocated(0)]), 'in blocks, with rounding'));
    const recorded = pyramid.reservedPeaks[0];
    run.layouts.forEach((layout, i) => {
      const peak = pyramid.reservedPeaks[i];
      const saved = recorded.bytes > 0 ? 1 - peak.bytes / recorded.bytes : 0;
      const basis = run.ooms.length > 0 ? 'by replay without the request that failed' : 'by replay';
      const note = i === 0 ? `at event ${countText(peak.moment)}` : `${percentText(Math.abs(saved))} ${saved >= 0 ? 'less' : 'more'}, ${basis}`;
      all.push(figure(i === 0 ? 'Reserved, peak' : `Reserved on the ${layout.name}`, bytesText(peak.bytes), note));
    });
    const moment = run.ooms.length > 0 ? run.ooms.at(-1)[0] : pyramid.peakMoment;
    const state = pyramid.at(moment);
    const held = state[pyramid.reserved(0)];
    const when = run.ooms.length > 0 ? 'when memory ran out' : 'at the peak of allocated memory';
    if (held > 0) all.push(figure('Fragmentation', percentText(Math.max(0, 1 - state[pyramid.allocated(0)] / held)), `unused ${when}`));
    const calls = run.calls.knownCount > 0 ? `from ${countOf(run.calls.knownCount, 'call stack')}` : 'call stacks were not recorded';
    all.push(figure('Allocations', countText(run.count + run.left_out), calls));
    if (run.ooms.length > 0) all.push(figure('Out of memory', run.ooms.length === 1 ? 'once' : `${countText(run.ooms.length)} times`, `last for ${bytesText(run.ooms.at(-1)[1])}`));
    return all;
  }

  showMoment() {
    const {run, pyramid, moment} = this.shared;
    const state = pyramid.at(moment);
    let requested = state[pyramid.rest];
    for (let category = 0; category < pyramid.categories; ++category) requested += state[category];
    const place = `event ${countText(moment)}${run.timeText(moment)}`;
    const text = `${place}: ${bytesText(requested)} requested, ${bytesText(state[pyramid.reserved(0)])} reserved`;
    byId('moment').value = String(moment);
    byId('moment').setAttribute('aria-valuetext', text);
    byId('moment-text').textContent = text;
    const isOom = run.ooms.some(([each]) => each === moment);
    const name = isOom ? `out of memory, ${place}` : moment === pyramid.peakMoment ? `the peak, ${place}` : place;
    for (const each of document.querySelectorAll('.at-moment')) each.textContent = `at ${name}`;
  }

  // ---- What the reader does ----

  listen() {
    const press = (id, work) => byId(id).addEventListener('click', work);
    press('zoom-in', () => this.shared.zoom(0.5));
    press('zoom-out', () => this.shared.zoom(2));
    press('zoom-all', () => this.shared.setView(0, this.shared.run.events));
    press('to-peak', () => this.shared.showMoment(this.shared.pyramid.peakMoment));
    press('to-oom', () => this.toOom());
    press('by-event', () => this.setAxis(false));
    press('by-time', () => this.setAxis(true));
    press('print', () => window.print());
    press('help', () => byId('keys').showModal());
    byId('moment').addEventListener('input', (event) => this.shared.setMoment(Number(event.target.value)));
    byId('run').addEventListener('change', (event) => this.shared.setRun(this.run(Number(event.target.value))));
    byId('frames').addEventListener('change', (event) => {
      this.flame.setLevel(Number(event.target.value));
      this.sites.setLevel(Number(event.target.value));
    });
    byId('search').addEventListener('input', afterPause(120, () => this.shared.setSearch(byId('search').value.trim())));
    document.addEventListener('keydown', (event) => this.key(event));
  }

  toOom() {
    const {ooms} = this.shared.run;
    if (ooms.length > 0) this.shared.showMoment(ooms.at(-1)[0]);
  }

  setAxis(byTime) {
    this.shared.byTime = byTime;
    byId('by-time').setAttribute('aria-pressed', String(byTime));
    byId('by-event').setAttribute('aria-pressed', String(!byTime));
    this.timeline.rebuild();
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || byId('keys').open) return;
    if (event.key === 'Escape') return this.leave();
    if (event.target.closest('input, select, textarea') !== null) return;
    const {shared} = this;
    const work = {
      ArrowLeft: () => (event.shiftKey ? shared.showMoment(shared.moment - 1) : shared.pan(-0.1)),
      ArrowRight: () => (event.shiftKey ? shared.showMoment(shared.moment + 1) : shared.pan(0.1)),
      '+': () => shared.zoom(0.7),
      '=': () => shared.zoom(0.7),
      '-': () => shared.zoom(1 / 0.7),
      0: () => shared.setView(0, shared.run.events),
      p: () => shared.showMoment(shared.pyramid.peakMoment),
      o: () => this.toOom(),
      t: () => theme.toggle(),
      '/': () => document.querySelector('.find').hidden || byId('search').focus(),
      '?': () => byId('keys').showModal(),
    }[event.key];
    if (work === undefined || shared.run === null) return;
    event.preventDefault();
    work();
  }

  leave() {
    searchFor('');
    byId('search').blur();
    this.flame.zoomTo(0);
  }
}

async function start() {
  try {
    const {report, columns} = await readReportData();
    for (const part of document.querySelectorAll('.top, main')) part.hidden = false;
    byId('loading').hidden = true;
    window.cachalotReport = new HtmlReport(report, columns);
    requestAnimationFrame(() => (document.documentElement.dataset.ready = String(Math.round(performance.now()))));
  } catch (error) {
    byId('loading').textContent = `The data of this report cannot be read: ${error.message}`;
    throw error;
  }
}

start();
