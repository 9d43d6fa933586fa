// Streamlit's list of pages has sections between the list and its items, which is no valid list for a screen reader.
// Its lists become plain groups of links, its section titles headings, and the current page is named as such.
const mend = () => {
  for (const e of document.querySelectorAll('[data-testid="stSidebarNav"] ul, [data-testid="stSidebarNav"] li')) {
    if (e.getAttribute('role') !== 'none') e.setAttribute('role', 'none');
  }
  for (const e of document.querySelectorAll('[data-testid="stNavSectionHeader"]')) {
    if (e.getAttribute('role') !== 'heading') { e.setAttribute('role', 'heading'); e.setAttribute('aria-level', '2'); }
  }
  const here = location.pathname.replace(/\/$/, '');
  for (const e of document.querySelectorAll('a[data-testid="stSidebarNavLink"]')) {
    const current = new URL(e.href).pathname.replace(/\/$/, '') === here ? 'page' : null;
    if (e.getAttribute('aria-current') !== current) {
      if (current) e.setAttribute('aria-current', current); else e.removeAttribute('aria-current');
    }
  }
};
if (!window.kvitalsNavigation) {
  let due = false;
  window.kvitalsNavigation = new MutationObserver(() => {
    if (due) return;
    due = true;
    requestAnimationFrame(() => { due = false; mend(); });
  });
  window.kvitalsNavigation.observe(document.body, {childList: true, subtree: true});
}
mend();
