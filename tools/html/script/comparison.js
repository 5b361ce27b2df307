'use strict';
// Two runs beside each other: their memory over time, each over its own length, and what grew from the first to the second
// between their peaks.

class Comparison {
  // `growthIsKnown`: the command's own tables say what grew.
  constructor(runs, growthIsKnown) {
    this.runs = runs.map((run) => ({run, pyramid: new Pyramid(run)}));
    this.element = byId('comparison-chart');
    byId('comparison').hidden = false;
    this.chart = null;
    this.drawChart();
    if (!growthIsKnown) this.showGrowth();
    theme.listeners.push(() => this.drawChart());
    new ResizeObserver(oncePerFrame(() => this.chart.setSize({width: Math.max(200, this.element.clientWidth), height: 240}))).observe(this.element);
  }

  drawChart() {
    this.chart?.destroy();
    const options = chartOptions(this.element, 240, (value) => (value === 0 ? '0' : bytesText(value).replace('.00', '')));
    options.axes[1].splits = byteSplits;
    options.axes[0].values = (_, ticks) => ticks.map((tick) => `${Math.round(100 * tick)} %`);
    options.cursor.drag.x = false;
    options.scales = {x: {time: false}, y: {range: (_, low, high) => [0, Math.max(1, high) * 1.06]}};
    const line = (color, dash, width) => ({stroke: () => theme.colors[color], width, dash, paths: stepped, points: {show: false}});
    options.series = [{}, line('ink', [], 1.2), line('ink', [7, 4], 2), line('accent', [], 1.2), line('accent', [7, 4], 2)];
    this.chart = new uPlot(options, this.data(), this.element);
    const names = this.runs.map(({run}) => run.name);
    byId('comparison-legend').replaceChildren(strokeKey(`${names[0]}, requested`, 'ink', 'solid'), strokeKey(`${names[0]}, reserved`, 'ink', 'dashed'), strokeKey(`${names[1]}, requested`, 'accent', 'solid'), strokeKey(`${names[1]}, reserved`, 'accent', 'dashed'));
    this.element.setAttribute('aria-label', this.runs.map(({run, pyramid}) => `${run.name}: at most ${bytesText(pyramid.peakTotal)} requested, ${bytesText(pyramid.reservedPeaks[0].bytes)} reserved`).join('; '));
  }

  // On one axis: the part of the run that is over.
  data() {
    const points = 600;
    const x = Float64Array.from({length: points + 1}, (_, i) => i / points);
    const columns = this.runs.flatMap(({run, pyramid}) => {
      const states = pyramid.query(0, run.events, points);
      const requested = new Float64Array(points + 1);
      const reserved = new Float64Array(points + 1);
      let row = 0;
      for (let i = 0; i <= points; ++i) {
        for (; row + 1 < states.moments.length && states.moments[row] <= (i / points) * run.events; ++row) this.raise(pyramid, states, row, i, requested, reserved);
        this.raise(pyramid, states, row, i, requested, reserved);
      }
      return [requested, reserved];
    });
    return [x, ...columns];
  }

  raise(pyramid, states, row, i, requested, reserved) {
    let sum = states.values[pyramid.rest][row];
    for (let category = 0; category < pyramid.categories; ++category) sum += states.values[category][row];
    requested[i] = Math.max(requested[i], sum);
    reserved[i] = Math.max(reserved[i], states.reservedMaxima[0][row]);
  }

  showGrowth() {
    const table = new DataTable([['grew by', 'growth'], ['first', 'bytes'], ['second', 'bytes'], ['line of the program', 'text']], 0, 'What grew');
    byId('growth').append(table.element);
    table.setRows(this.growth());
  }

  growth() {
    const bytes = new Map();  // by line, of both runs
    this.runs.forEach(({run, pyramid}, which) => {
      run.bytesByStack(run.liveAt(pyramid.peakMoment)).forEach((sum, stack) => {
        if (sum === 0) return;
        const text = run.calls.placeText(run.calls.place(stack, 0));
        if (!bytes.has(text)) bytes.set(text, [0, 0]);
        bytes.get(text)[which] += sum;
      });
    });
    return [...bytes].map(([text, [first, second]]) => ({cells: [second - first, first, second, text]}));
  }
}
