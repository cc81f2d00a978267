// The table of sites: filtered, sorted, and with the numbers of the step that is chosen.

class SiteTable {
  constructor(page) {
    this.page = page;
    this.body = document.querySelector("#sites tbody");
    this.rows = [...this.body.rows];
    this.order = new Map(this.rows.map((row, number) => [row, number]));
    this.byName = new Map(this.rows.map((row) => [row.dataset.site, row]));
    this.filter = document.getElementById("filter");
    this.shown = document.getElementById("shown");
    this.filter.addEventListener("input", () => this.apply());
    for (const head of document.querySelectorAll("#sites thead th")) {
      head.querySelector("button").addEventListener("click", () => this.sort(head));
    }
    this.body.addEventListener("click", (event) => {
      const row = event.target.closest("tr");
      if (row === null) return;
      event.preventDefault();
      page.open(row.dataset.site);
    });
  }

  apply() {
    let matches;
    try {
      matches = parseFilter(this.filter.value);
      this.filter.removeAttribute("aria-invalid");
    } catch (error) {
      this.filter.setAttribute("aria-invalid", "true");
      this.shown.textContent = error.message;
      return;
    }
    let number = 0;
    for (const row of this.rows) {
      const site = this.page.data.sites[row.dataset.site];
      row.hidden = !matches(row.dataset.site, site, this.page.data.modules[site.path] ?? []);
      number += !row.hidden;
    }
    const all = this.rows.length;
    this.shown.textContent = number === all ? `${grouped(all)} sites` : `${grouped(number)} of ${grouped(all)} sites`;
  }

  // First the usual way round (texts from a to z, numbers from large to small), then the other,
  // then the order of the modules again.
  sort(head) {
    const before = head.getAttribute("aria-sort");
    const name = head.dataset.column;
    const isText = ["site", "type", "shape"].includes(name);
    const usual = isText ? "ascending" : "descending";
    const next = before === null ? usual : before === usual ? (isText ? "descending" : "ascending") : null;
    for (const one of document.querySelectorAll("#sites thead th")) one.removeAttribute("aria-sort");
    if (next !== null) head.setAttribute("aria-sort", next);
    const sign = next === "ascending" ? 1 : -1;
    const key = new Map(this.rows.map((row) => [row, this.key(row, name)]));
    const place = (row) => this.order.get(row);
    this.rows.sort((one, two) => {
      if (next === null) return place(one) - place(two);
      const [left, right] = [key.get(one), key.get(two)];
      if (isText) return sign * left.localeCompare(right, "en", { numeric: true }) || place(one) - place(two);
      if (Number.isNaN(left) || Number.isNaN(right)) return Number.isNaN(left) - Number.isNaN(right) || place(one) - place(two);
      return sign * (left - right) || place(one) - place(two);
    });
    this.body.append(...this.rows);
  }

  key(row, name) {
    const site = row.dataset.site;
    if (name === "site") return site;
    if (name === "type" || name === "shape") return row.querySelector(`.${name}`).textContent;
    return this.number(site, name === "series" ? "std" : name);
  }

  // What a cell shows: the number of the chosen step; of several steps together the largest.
  number(site, name) {
    const { data, step } = this.page;
    if (name === "other") return data.runs.length > 1 ? this.numberOf(data.runs[1], site, "std", step) : NaN;
    if (name === "ratio") return this.number(site, "other") / this.number(site, "std");
    return this.numberOf(data.runs[0], site, name, step);
  }

  numberOf(run, site, name, step) {
    const series = run.series[site];
    if (series === undefined) return NaN;
    return step >= lastStep(run) ? lastNumber(run.last[site], name) : lowHighAt(series[name], partAt(run, step))[1];
  }

  // Write the numbers of the chosen step.
  showStep() {
    for (const row of this.rows) {
      for (const cell of row.querySelectorAll("td[data-name]")) {
        const name = cell.dataset.name;
        const shown = cellText(name, this.number(row.dataset.site, name));
        if (cell.textContent !== shown) cell.textContent = shown;
      }
    }
  }

  mark(name) {
    for (const row of this.body.querySelectorAll("tr[aria-current]")) row.removeAttribute("aria-current");
    const row = this.byName.get(name);
    if (row === undefined) return;
    row.setAttribute("aria-current", "true");
    row.scrollIntoView({ block: "nearest" });
  }

  // The site so many rows further in what is shown.
  beside(name, distance) {
    const shown = this.rows.filter((row) => !row.hidden);
    const at = shown.indexOf(this.byName.get(name));
    const next = at < 0 ? (distance > 0 ? 0 : shown.length - 1) : at + distance;
    return shown[Math.min(Math.max(next, 0), shown.length - 1)]?.dataset.site;
  }
}
