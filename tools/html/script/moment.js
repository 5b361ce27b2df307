'use strict';
// The state that all parts of the report share: the run, the moment, the stretch that the timeline shows, and the search.
// Parts subscribe to what they show; a change tells them in the next frame.

class Shared {
  constructor() {
    this.listeners = {run: [], moment: [], view: [], search: [], pause: []};
    this.run = null;
    this.pyramid = null;
    this.moment = 0;
    this.view = [0, 1];
    this.byTime = false;
    this.hidden = new Set();  // categories
    this.search = '';
    this.matches = null;  // of the search: by frame and by stack
    this.live = new Uint32Array(0);
    this.momentChanged = oncePerFrame(() => {
      this.live = this.run.liveAt(this.moment).slice();
      this.tell('moment');
      this.paused();
    });
    this.paused = afterPause(60, () => this.tell('pause'));
    this.viewChanged = oncePerFrame(() => this.tell('view'));
  }

  on(what, listener) {
    this.listeners[what].push(listener);
  }
  tell(what) {
    for (const listener of this.listeners[what]) listener();
  }

  setRun(run) {
    this.run = run;
    this.matches = this.search === '' ? null : run.calls.matches(this.search);
    this.pyramid = new Pyramid(run, this.matches?.stacks ?? null);
    this.moment = run.ooms.at(-1)?.[0] ?? this.pyramid.peakMoment;
    this.live = run.liveAt(this.moment).slice();
    this.view = [0, Math.max(1, run.events)];
    this.tell('run');
    this.tell('moment');
    this.tell('pause');
    this.tell('view');
  }

  setMoment(moment) {
    this.moment = clamp(Math.round(moment), 0, this.run.events);
    this.momentChanged();
  }

  // Sets the stretch, within the history; `minimum` is the shortest, in events.
  setView(from, to, minimum = 8) {
    const events = Math.max(1, this.run.events);
    const length = clamp(to - from, Math.min(minimum, events), events);
    const middle = (from + to) / 2;
    const begin = clamp(to - from === length ? from : middle - length / 2, 0, events - length);
    this.view = [begin, begin + length];
    this.viewChanged();
  }

  // Zooms around a moment, which stays where it is on the screen.
  zoom(factor, around = (this.view[0] + this.view[1]) / 2) {
    const [from, to] = this.view;
    this.setView(around - (around - from) * factor, around + (to - around) * factor);
  }

  pan(part) {
    const [from, to] = this.view;
    const step = (to - from) * part;
    this.setView(from + step, to + step);
  }

  // Brings the moment into view.
  showMoment(moment) {
    this.setMoment(moment);
    const [from, to] = this.view;
    if (moment >= from && moment <= to) return;
    this.setView(moment - (to - from) / 2, moment + (to - from) / 2);
  }

  setSearch(words) {
    if (words === this.search) return;
    this.search = words;
    this.matches = words === '' ? null : this.run.calls.matches(words);
    this.pyramid = new Pyramid(this.run, this.matches?.stacks ?? null);
    this.tell('search');
  }

  isDimmed(allocation) {
    return this.matches !== null && this.matches.stacks[this.run.stackOf(allocation)] === 0;
  }
}
