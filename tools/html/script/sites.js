'use strict';
// The lines of the program that allocated: what of theirs lives at the moment, what lived at the peak, and over the whole run.

class SitesTable {
  constructor(shared) {
    this.shared = shared;
    this.level = 0;
    this.table = new DataTable([['at the moment', 'bytes'], ['blocks', 'count'], ['at the peak', 'bytes'], ['allocations', 'count'], ['largest', 'bytes'], ['mostly', 'text'], ['line of the program', 'text']], 0, 'Lines of the program by the memory that they hold');
    byId('sites').append(this.table.element);
    shared.on('run', () => this.rebuild());
    shared.on('pause', () => this.draw());
    shared.on('search', () => this.draw());
    theme.listeners.push(() => this.draw());
  }

  setLevel(level) {
    this.level = level;
    this.rebuild();
    this.draw();
  }

  // What does not depend on the moment.
  rebuild() {
    const {run, pyramid} = this.shared;
    const calls = run.calls;
    const sites = new Map();
    this.siteOfStack = Array.from({length: calls.stackCount}, (_, stack) => {
      const frame = calls.place(stack, this.level);
      if (!sites.has(frame)) sites.set(frame, {frame, now: 0, blocks: 0, peak: 0, count: 0, largest: 0, byCategory: new Float64Array(run.categories.length)});
      return sites.get(frame);
    });
    this.sites = [...sites.values()];
    for (let allocation = 0; allocation < run.count; ++allocation) {
      const site = this.siteOfStack[run.stackOf(allocation)];
      const bytes = run.bytesOf(allocation);
      ++site.count;
      site.largest = Math.max(site.largest, bytes);
      site.byCategory[run.category[allocation]] += bytes;
    }
    for (const allocation of run.liveAt(pyramid.peakMoment)) {
      const site = this.siteOfStack[run.stackOf(allocation)];
      if (site.peak === 0) site.byCategory.fill(0);  // what lives at the peak tells more than what was short-lived
      site.peak += run.bytesOf(allocation);
      site.byCategory[run.category[allocation]] += run.bytesOf(allocation);
    }
  }

  draw() {
    const {run, live, matches} = this.shared;
    if (run === null) return;
    for (const site of this.sites) site.now = site.blocks = 0;
    for (const allocation of live) {
      const site = this.siteOfStack[run.stackOf(allocation)];
      site.now += run.bytesOf(allocation);
      ++site.blocks;
    }
    const matching = new Set();
    if (matches !== null) this.siteOfStack.forEach((site, stack) => matches.stacks[stack] !== 0 && matching.add(site));
    this.table.setRows(this.sites.filter((site) => matches === null || matching.has(site)).map((site) => this.row(site)));
  }

  row(site) {
    const {run} = this.shared;
    const category = site.byCategory.indexOf(Math.max(...site.byCategory));
    const text = run.calls.placeText(site.frame);
    const press = site.frame < 0 ? undefined : () => searchFor(text.replace(/^.*\//, ''));
    return {cells: [site.now, site.blocks, site.peak, site.count, site.largest, run.categories[category], text], color: theme.category(category), colorColumn: 5, press};
  }
}
