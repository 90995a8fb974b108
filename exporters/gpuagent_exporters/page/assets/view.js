// What a person wants to see is in the address. Links that change it do so without a new page, and a field filters.

const WAIT_MS = 200;

export const view = {
  // `refresh` reads the page of the new address.
  start(refresh) {
    const show = (query) => {
      history.replaceState(null, "", query || location.pathname);
      refresh();
    };
    document.addEventListener("click", (event) => {
      const link = event.target.closest?.("a[data-view]");
      if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      const { search } = new URL(link.href);
      field.value = new URLSearchParams(search).get("filter") ?? "";
      show(search);
    });
    let waiting = 0;
    field.addEventListener("input", () => {
      clearTimeout(waiting);
      waiting = setTimeout(() => {
        const query = new URLSearchParams(location.search);
        if (field.value) query.set("filter", field.value);
        else query.delete("filter");
        show(query.size ? `?${query}` : "");
      }, WAIT_MS);
    });
    field.value = new URLSearchParams(location.search).get("filter") ?? "";
    document.getElementById("filter")?.replaceChildren(field);
    document.addEventListener("keydown", (event) => {
      const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.nodeName);
      if (event.key !== "/" || typing || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      field.focus();
    });
  },
};

const field = document.createElement("input");
field.type = "search";
field.placeholder = "filter: a word, user:NAME, gpu:0   ( / )";
field.maxLength = 100;
field.setAttribute("aria-label", "Filter processes");
