// Makes one tree like another by changing only what differs, so that focus, selection and scroll positions stay where
// the reader has them. Elements with `data-keep` belong to a script: what is in them is left alone. Elements with the
// same `data-key` are the same thing, wherever they have moved to.

export function morph(old, fresh) {
  if (old.isEqualNode(fresh) || old.hasAttribute("data-keep")) return;
  copyAttributes(old, fresh);
  const known = new Map();
  for (const child of old.children) if (child.dataset.key) known.set(child.dataset.key, child);
  let place = old.firstChild;
  for (const wanted of fresh.childNodes) {
    const match = findMatch(wanted, place, known);
    if (!match) {
      old.insertBefore(document.importNode(wanted, true), place);
      continue;
    }
    if (match === place) place = place.nextSibling;
    else old.insertBefore(match, place);
    if (match.nodeType === Node.ELEMENT_NODE) morph(match, wanted);
    else if (match.data !== wanted.data) match.data = wanted.data;
  }
  while (place) {
    const next = place.nextSibling;
    place.remove();
    place = next;
  }
}

function findMatch(wanted, place, known) {
  const key = keyOf(wanted);
  if (key) {
    const match = known.get(key);
    known.delete(key); // of two with one key the second is new
    return match?.nodeName === wanted.nodeName ? match : null;
  }
  return place && !keyOf(place) && place.nodeName === wanted.nodeName && place.id === wanted.id ? place : null;
}

function keyOf(node) {
  return node.nodeType === Node.ELEMENT_NODE ? node.dataset.key : undefined;
}

function copyAttributes(old, fresh) {
  const kept = old.nodeName === "DETAILS" ? "open" : ""; // whether it is open is for the reader to say
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name) && name !== kept) old.removeAttribute(name);
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value && name !== kept) old.setAttribute(name, value);
  }
}
