'use strict';
// The timelines: requested memory in stacked categories with the lines of allocated and reserved memory, and fragmentation
// below it; both show the same stretch. uPlot draws them.

const STRIP = 14;  // pixels: the height of a strip of stages
const STRIPS = 3;  // nested stages that are shown

class Timeline {
  constructor(shared) {
    this.shared = shared;
    this.element = byId('timeline');
    this.chart = null;
    this.fragmentation = null;
    this.overview = new Overview(shared);
    shared.on('run', () => this.rebuild());
    shared.on('view', () => this.draw());
    shared.on('search', () => this.rebuild());
    shared.on('moment', () => this.placeMoment());
    theme.listeners.push(() => this.rebuild());
    new ResizeObserver(oncePerFrame(() => this.resize())).observe(this.element);
    this.seesFragmentation = false;
    new IntersectionObserver((entries) => {
      this.seesFragmentation = entries.at(-1).isIntersecting;
      this.drawFragmentation();
    }).observe(byId('fragmentation'));
    this.listen();
  }

  // ---- Of moments and places ----

  x(moment) {
    return this.shared.byTime ? this.shared.run.timeAt(moment) / 1e6 : moment;
  }

  momentAt(clientX) {
    const box = this.chart.over.getBoundingClientRect();
    const value = this.chart.posToVal(clientX - box.left, 'x');
    return this.shared.byTime ? this.shared.run.momentAtTime(value * 1e6) : value;
  }

  // ---- Drawing ----

  rebuild() {
    if (this.shared.run === null) return;
    this.chart?.destroy();
    this.fragmentation?.destroy();
    const {run, pyramid} = this.shared;
    this.shown = run.categories.map((_, i) => i).filter((i) => pyramid.maxima[i] > 0 && !this.shared.hidden.has(i));
    this.chart = new uPlot(this.options(), this.data(), this.element);
    this.marker = element('div', {className: 'marker'});
    this.chart.over.append(this.marker);
    this.placeMoment();
    this.fragmentation = new uPlot(this.fragmentationOptions(), this.fragmentationData(), byId('fragmentation'));
    this.drawLegend();
    this.overview.rebuild();
    this.describe();
  }

  options() {
    const {run} = this.shared;
    const options = chartOptions(this.element, 330, (value) => (value === 0 ? '0' : bytesText(value).replace('.00', '')));
    options.axes[1].splits = byteSplits;
    options.axes[0].values = (_, ticks) => ticks.map((tick) => this.tickText(tick));
    options.scales = {x: {time: false, range: () => this.shared.view.map((moment) => this.x(moment))}, y: {range: () => [0, this.highest() * 1.06]}};
    options.hooks = {
      drawAxes: [(chart) => this.drawAreas(chart)],
      draw: [(chart) => this.drawStages(chart), (chart) => this.drawOoms(chart)],
      setSelect: [(chart) => this.brush(chart)],
    };
    options.series = [{}];
    options.series.push(this.line('soft', 1, DASHES.allocated));
    run.layouts.forEach((_, layout) => options.series.push(this.line(layout === 0 ? 'ink' : 'accent', 2, layout === 0 ? DASHES.reserved : DASHES.replayed)));
    if (this.shared.matches !== null) options.series.push(this.line('mark', 2, DASHES.matching));
    return options;
  }

  line(color, width, dash) {
    return {stroke: () => theme.colors[color], width, dash, paths: stepped, points: {show: false}};
  }

  tickText(tick) {
    if (this.shared.byTime) return durationText(tick * 1e6).replace('.000', '').replace('.00', '');
    return countText(tick);
  }

  highest() {
    const {pyramid, run} = this.shared;
    return Math.max(1, pyramid.peakTotal, ...run.layouts.map((_, layout) => pyramid.maxima[pyramid.reserved(layout)]), ...pyramid.reservedPeaks.map((peak) => peak.bytes));
  }

  points() {
    return clamp(Math.round(this.element.clientWidth / 2), 150, 1000);
  }

  // Asks for the states of the stretch, and returns the lines: of each group of events one point, its largest state.
  data() {
    const {pyramid, view} = this.shared;
    const margin = (view[1] - view[0]) * 0.01 + 1;
    this.states = pyramid.query(view[0] - margin, view[1] + margin, this.points());
    this.totals = this.totalsOf(this.states);
    const {highRows, values, reservedMaxima, moments} = this.states;
    const lines = [values[pyramid.allocated(0)], ...reservedMaxima];
    if (this.shared.matches !== null) lines.push(values[pyramid.matching]);
    const x = this.shared.byTime ? moments.map((moment) => this.x(moment)) : moments;
    return [x, ...lines].map((column) => this.closed(highRows.map((row) => column[row])));
  }

  // The sums of what is stacked.
  totalsOf({values}) {
    const totals = values[this.shared.pyramid.rest].slice();
    for (const category of this.shown) values[category].forEach((bytes, i) => (totals[i] += bytes));
    return totals;
  }

  // With a last point, so that steps reach the right end.
  closed(column) {
    const longer = new Float64Array(column.length + 1);
    longer.set(column);
    longer[column.length] = column.length === 0 ? 0 : column[column.length - 1];
    return longer;
  }

  fragmentationOptions() {
    const element = byId('fragmentation');
    const options = chartOptions(element, 140, (value) => `${Math.round(100 * value)} %`);
    options.axes[0].values = (_, ticks) => ticks.map((tick) => this.tickText(tick));
    options.scales = {x: {time: false, range: () => this.shared.view.map((moment) => this.x(moment))}, y: {range: [0, 1]}};
    options.hooks = {setSelect: [(chart) => this.brush(chart)]};
    options.series = [{}, ...this.shared.run.layouts.map((_, layout) => this.line(layout === 0 ? 'ink' : 'accent', 1.6, layout === 0 ? DASHES.reserved : DASHES.replayed))];
    return options;
  }

  // One point of each group of events: its smallest state, when most of the memory that is held is unused.
  fragmentationData() {
    const {pyramid, run} = this.shared;
    const {moments, values, lowRows} = pyramid.query(...this.shared.view, this.points() / 2);
    const parts = run.layouts.map((_, layout) => {
      const allocated = values[pyramid.allocated(layout)];
      const reserved = values[pyramid.reserved(layout)];
      return lowRows.map((row) => (reserved[row] > 0 ? Math.max(0, 1 - allocated[row] / reserved[row]) : 0));
    });
    return [lowRows.map((row) => this.x(moments[row])), ...parts].map((column) => this.closed(column));
  }

  // Stacks the categories in columns of whole pixels, each with the largest state that falls on it: polygons with thousands
  // of edges would cost ten times as much.
  drawAreas(chart) {
    const columns = this.pixelColumns(chart);
    const {values} = this.states;
    const {ctx, bbox} = chart;
    const bottom = bbox.top + bbox.height;
    const perByte = bbox.height / (this.highest() * 1.06);
    const bases = columns.map(({row}) => values[this.shared.pyramid.rest][row]);
    for (const category of this.shown) {
      ctx.fillStyle = theme.category(category);
      const bytes = values[category];
      columns.forEach(({left, right, row}, i) => {
        if (bytes[row] <= 0) return;
        const low = Math.round(bases[i] * perByte);
        bases[i] += bytes[row];
        ctx.fillRect(left, bottom - Math.round(bases[i] * perByte), right - left, Math.round(bases[i] * perByte) - low);
      });
    }
  }

  // Returns [{left, right, row}]: which state fills which columns of pixels.
  pixelColumns(chart) {
    const {moments} = this.states;
    const {left, width} = chart.bbox;
    const [from, to] = this.shared.view.map((moment) => this.x(moment));
    const pixelOf = (moment) => clamp(Math.round(left + ((this.x(moment) - from) / (to - from)) * width), left, left + width);
    const columns = [];
    let open = null;
    for (let row = 0; row < moments.length; ++row) {
      const pixel = pixelOf(moments[row]);
      if (open !== null && pixel === open.left) {
        if (this.totals[row] > this.totals[open.row]) open.row = row;
        open.last = row;
        continue;
      }
      if (open !== null) columns.push({...open, right: pixel});
      open = {left: pixel, right: pixel, row};
    }
    if (open !== null) columns.push({...open, right: left + width});
    return columns;
  }

  draw() {
    if (this.chart === null) return;
    this.chart.setData(this.data(), true);
    this.drawFragmentation();
    this.overview.showWindow();
    this.placeMoment();
  }

  // Nothing is drawn that is not on the screen.
  drawFragmentation() {
    if (this.fragmentation !== null && this.seesFragmentation) this.fragmentation.setData(this.fragmentationData(), true);
  }

  // The moment is an element over the chart, which moves without drawing the chart anew.
  placeMoment() {
    if (this.chart === null) return;
    const [from, to] = this.shared.view.map((moment) => this.x(moment));
    const part = (this.x(this.shared.moment) - from) / (to - from);
    this.marker.hidden = !(part >= 0 && part <= 1);
    this.marker.style.left = `${100 * part}%`;
  }

  // Annotations of the program, as strips at the top with their names.
  drawStages(chart) {
    const {ctx, bbox} = chart;
    const ratio = window.devicePixelRatio || 1;
    const height = STRIP * ratio;
    const [from, to] = this.shared.view;
    const xOf = (moment) => chart.valToPos(this.x(clamp(moment, from, to)), 'x', true);
    ctx.save();
    ctx.font = `${10 * ratio}px system-ui, "DejaVu Sans", sans-serif`;
    ctx.textBaseline = 'middle';
    ctx.textAlign = 'left';
    for (const span of this.shared.run.stageSpans) {
      if (span.depth >= STRIPS || span.to < from || span.from > to) continue;
      const [left, right, top] = [xOf(span.from), xOf(span.to), bbox.top + span.depth * height];
      if (right - left < 2 * ratio) continue;
      ctx.fillStyle = theme.colors.line;
      ctx.fillRect(left, top, right - left - ratio, height - ratio);
      if (right - left < 30 * ratio) continue;
      ctx.fillStyle = theme.colors.ink;
      ctx.fillText(fittedText(ctx, span.name, right - left - 7 * ratio), left + 3 * ratio, top + height / 2);
    }
    ctx.restore();
  }

  drawOoms(chart) {
    const {ctx, bbox} = chart;
    const ratio = window.devicePixelRatio || 1;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    ctx.font = `${11 * ratio}px system-ui, "DejaVu Sans", sans-serif`;
    const strips = this.shared.run.stageSpans.reduce((most, span) => Math.max(most, Math.min(span.depth + 1, STRIPS)), 0);
    for (const [moment] of this.shared.run.ooms.slice(-200)) {
      const x = Math.round(chart.valToPos(this.x(moment), 'x', true)) + 0.5;
      this.mark(ctx, x, bbox, theme.colors.alarm, [3 * ratio, 3 * ratio], 'out of memory', bbox.top + (strips * STRIP + 12) * ratio, ratio);
    }
    ctx.restore();
  }

  mark(ctx, x, bbox, color, dash, text, textAt, ratio) {
    if (x < bbox.left - 1 || x > bbox.left + bbox.width + 1) return;
    ctx.strokeStyle = color;
    ctx.fillStyle = color;
    ctx.lineWidth = 1.5 * ratio;
    ctx.setLineDash(dash);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    ctx.setLineDash([]);
    const isRight = x > bbox.left + bbox.width / 2;
    ctx.textAlign = isRight ? 'right' : 'left';
    if (text === '') return;
    const at = x + (isRight ? -5 : 5) * ratio;
    const width = ctx.measureText(text).width + 4 * ratio;
    ctx.fillStyle = theme.colors.paper;  // lines behind the text do not strike it out
    ctx.fillRect(isRight ? at - width + 2 * ratio : at - 2 * ratio, textAt - 9 * ratio, width, 12 * ratio);
    ctx.fillStyle = color;
    ctx.fillText(text, at, textAt);
  }

  drawLegend() {
    const {run, pyramid} = this.shared;
    const keys = run.categories.map((name, i) => [name, i]).filter(([, i]) => pyramid.maxima[i] > 0).map(([name, i]) => this.categoryKey(name, i));
    const lines = [strokeKey('allocated (blocks)', 'soft', 'solid')];
    run.layouts.forEach((layout, i) => lines.push(strokeKey(`reserved, ${layout.name}`, i === 0 ? 'ink' : 'accent', i === 0 ? 'solid' : 'dashed')));
    if (this.shared.matches !== null) lines.push(strokeKey(`matches of “${this.shared.search}”`, 'mark', 'solid'));
    if (run.left_out > 0) lines.push(element('span', {className: 'key', textContent: `${countOf(run.left_out, 'small allocation')}, only as a sum`}));
    showLegend('legend', keys, lines);
    byId('fragmentation-legend').replaceChildren(...run.layouts.map((layout, i) => strokeKey(layout.name, i === 0 ? 'ink' : 'accent', i === 0 ? 'solid' : 'dashed')));
  }

  categoryKey(name, category) {
    const swatch = element('span', {className: 'swatch'});
    swatch.style.background = theme.category(category);
    const button = element('button', {type: 'button'}, [swatch, name], {'aria-pressed': String(!this.shared.hidden.has(category))});
    button.addEventListener('click', () => {
      if (!this.shared.hidden.delete(category)) this.shared.hidden.add(category);
      this.rebuild();
    });
    return button;
  }

  // The chart in words, for those who do not see it.
  describe() {
    const {run, pyramid} = this.shared;
    const at = (moment) => `event ${countText(moment)}`;
    const reserved = run.layouts.map((layout, i) => `${layout.name} reserves at most ${bytesText(pyramid.reservedPeaks[i].bytes)} at ${at(pyramid.reservedPeaks[i].moment)}`);
    byId('timeline').setAttribute('aria-description', `At most ${bytesText(pyramid.peakTotal)} are requested, at ${at(pyramid.peakTotalMoment)} of ${countText(run.events)}; ${reserved.join('; ')}.`);
    byId('fragmentation').setAttribute('aria-label', `Fragmentation over time of ${run.layouts.map((layout) => layout.name).join(' and ')}`);
  }

  resize() {
    if (this.chart === null) return;
    const width = Math.max(200, this.element.clientWidth);
    if (width === this.chart.width) return;
    this.chart.setSize({width, height: this.chart.height});
    this.fragmentation.setSize({width, height: this.fragmentation.height});
    this.overview.rebuild();
    this.draw();
  }

  // ---- What the reader does ----

  brush(chart) {
    const {left, width} = chart.select;
    if (width < 5) return;
    const momentOf = (place) => {
      const value = chart.posToVal(place, 'x');
      return this.shared.byTime ? this.shared.run.momentAtTime(value * 1e6) : value;
    };
    const [from, to] = [momentOf(left), momentOf(left + width)];
    chart.setSelect({left: 0, width: 0, top: 0, height: 0}, false);
    this.shared.setView(from, to);
  }

  listen() {
    let press = null;
    this.element.addEventListener('wheel', (event) => {
      event.preventDefault();
      const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY);
      if (sideways) this.shared.pan(event.deltaX / 800);
      else this.shared.zoom(2 ** (clamp(event.deltaY, -240, 240) / 240), this.momentAt(event.clientX));
    }, {passive: false});
    this.element.addEventListener('pointerdown', (event) => {
      press = {x: event.clientX, view: [...this.shared.view], pans: event.shiftKey || event.button === 1};
      if (press.pans) this.element.setPointerCapture(event.pointerId);
    });
    // uPlot selects with the mouse: a press with Shift is not for it.
    this.element.addEventListener('mousedown', (event) => {
      if (event.shiftKey || event.button === 1) event.stopImmediatePropagation();
    }, {capture: true});
    this.element.addEventListener('pointermove', (event) => {
      if (press?.pans) {
        const step = ((press.x - event.clientX) / this.chart.over.clientWidth) * (press.view[1] - press.view[0]);
        this.shared.setView(press.view[0] + step, press.view[1] + step);
      } else {
        this.showTip(event);
      }
    });
    this.element.addEventListener('pointerup', (event) => {
      if (press !== null && !press.pans && Math.abs(event.clientX - press.x) < 4) this.shared.setMoment(this.momentAt(event.clientX));
      press = null;
    });
    this.element.addEventListener('pointerleave', () => tip.hide());
  }

  showTip(event) {
    const box = this.chart.over.getBoundingClientRect();
    if (event.clientX < box.left || event.clientX > box.right || event.clientY > box.bottom) return tip.hide();
    tip.show(stateText(this.shared, Math.round(this.momentAt(event.clientX))), event);
  }
}
