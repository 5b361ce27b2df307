'use strict';
// The whole run, small, with a window over the stretch that the timeline shows.
class Overview {
  constructor(shared) {
    this.shared = shared;
    this.element = byId('overview');
    this.canvas = element('canvas');
    this.window = element('div', {className: 'window'});
    this.element.append(this.canvas, this.window);
    this.canvas.style.width = '100%';
    this.listen();
  }

  rebuild() {
    const {run, pyramid} = this.shared;
    const width = this.element.clientWidth;
    const height = this.element.clientHeight;
    const context = sizedContext(this.canvas, width, height);
    const {moments, values, reservedMaxima} = pyramid.query(0, run.events, clamp(width, 100, 1500));
    const highest = Math.max(1, ...pyramid.reservedPeaks.map((peak) => peak.bytes), pyramid.peakTotal);
    const events = Math.max(1, run.events);
    const area = (column, fill) => {
      context.fillStyle = fill;
      context.beginPath();
      context.moveTo(0, height);
      moments.forEach((moment, i) => context.lineTo((moment / events) * width, height - (column(i) / highest) * (height - 3)));
      context.lineTo(width, moments.length === 0 ? height : height - (column(moments.length - 1) / highest) * (height - 3));
      context.lineTo(width, height);
      context.fill();
    };
    area((i) => reservedMaxima[0][i], theme.colors.free);
    area((i) => {
      let sum = values[pyramid.rest][i];
      for (let category = 0; category < pyramid.categories; ++category) sum += values[category][i];
      return sum;
    }, theme.colors.edge);
    this.showWindow();
  }

  showWindow() {
    const events = Math.max(1, this.shared.run.events);
    const [from, to] = this.shared.view;
    this.window.style.left = `${(100 * from) / events}%`;
    this.window.style.width = `${Math.max(0.3, (100 * (to - from)) / events)}%`;
  }

  listen() {
    let press = null;
    const momentAt = (event) => {
      const box = this.element.getBoundingClientRect();
      return clamp((event.clientX - box.left) / box.width, 0, 1) * this.shared.run.events;
    };
    this.element.addEventListener('pointerdown', (event) => {
      press = {moment: momentAt(event), view: [...this.shared.view], moves: event.target === this.window};
      this.element.setPointerCapture(event.pointerId);
    });
    this.element.addEventListener('pointermove', (event) => {
      if (press === null) return;
      const moment = momentAt(event);
      if (press.moves) this.shared.setView(press.view[0] + moment - press.moment, press.view[1] + moment - press.moment);
      else if (Math.abs(moment - press.moment) > 1) this.shared.setView(Math.min(moment, press.moment), Math.max(moment, press.moment));
    });
    this.element.addEventListener('pointerup', () => (press = null));
  }
}
