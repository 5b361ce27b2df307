'use strict';
// Dark or light: as the system prefers, until the reader chooses. Colours of canvases are those of report.css.

const theme = {
  listeners: [],
  colors: {},
  isChosen: false,

  start() {
    const dark = window.matchMedia('(prefers-color-scheme: dark)');
    this.apply(dark.matches);
    dark.addEventListener('change', () => this.isChosen || this.apply(dark.matches));
    byId('theme').addEventListener('click', () => this.toggle());
    // Paper is white.
    let wasDark = false;
    window.addEventListener('beforeprint', () => {
      wasDark = this.isDark();
      this.apply(false);
    });
    window.addEventListener('afterprint', () => this.apply(wasDark));
  },

  isDark() {
    return document.documentElement.dataset.theme === 'dark';
  },

  toggle() {
    this.isChosen = true;
    this.apply(!this.isDark());
  },

  apply(dark) {
    document.documentElement.dataset.theme = dark ? 'dark' : 'light';
    const button = byId('theme');
    button.textContent = dark ? 'Light' : 'Dark';
    button.setAttribute('aria-label', dark ? 'Switch to light colours' : 'Switch to dark colours');
    const style = getComputedStyle(document.documentElement);
    const names = ['paper', 'ink', 'soft', 'line', 'grid', 'accent', 'alarm', 'mark', 'free', 'padding', 'edge', 'flame-ink'];
    for (const name of names) this.colors[name] = style.getPropertyValue(`--${name}`).trim();
    this.categories = Array.from({length: 11}, (_, i) => style.getPropertyValue(`--cat-${i}`).trim());
    for (const listener of this.listeners) listener();
  },

  // Categories of a user's rules come after the command's nine; they share two colours.
  category(number) {
    return this.categories[number < 9 ? number : 9 + ((number - 9) % 2)];
  },
};
