// A button in each column's head sorts the table, and the order stays when the page is refreshed.

let column = "";
let descending = true;

// Puts the buttons into the heads of a page that was just read, and its rows into the chosen order.
export function sortable(page) {
  for (const head of page.querySelectorAll("th[data-sort]")) {
    const button = page.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
  }
  sort(page);
}

// One listener for all buttons, as they come and go with the columns.
document.addEventListener("click", ({ target }) => {
  const head = target.closest?.("th[data-sort]");
  if (!head) return;
  const name = head.textContent;
  descending = name === column ? !descending : head.classList.contains("number");
  column = name;
  sort(document);
});

function sort(page) {
  for (const table of page.querySelectorAll("table")) {
    const heads = [...table.tHead.rows[0].cells];
    const place = heads.findIndex((head) => head.textContent === column);
    if (place < 0) continue;
    heads.forEach((head, at) => {
      if (at === place) head.setAttribute("aria-sort", descending ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    const body = table.tBodies[0];
    const figures = heads[place].classList.contains("number");
    const rows = [...body.rows].sort((one, other) => compare(one.cells[place], other.cells[place], figures));
    body.append(...rows);
  }
}

// What is not known stands last, whichever way the table is sorted.
function compare(one, other, figures) {
  const [a, b] = [one, other].map((cell) => (figures ? cell.dataset.value : cell.textContent) ?? "");
  if (a === "" || b === "") return (a === "") - (b === "");
  const order = figures ? Number(a) - Number(b) : a.localeCompare(b);
  return descending ? -order : order;
}
