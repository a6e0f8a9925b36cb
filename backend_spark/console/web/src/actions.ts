// Loads, actions and drafts of a page. On a slow link a second action begins before the first has ended.
import type { Session } from "./api";

// What could not be read is read again after this time.
export const RETRY_MS = 5000;

// Runs one at a time. A call meanwhile begins one more afterwards, and ends with it.
export function oneAtATime(run: () => Promise<void>): () => Promise<void> {
  let isStale = false;
  let running: Promise<void> | null = null;
  const runAll = async () => {
    while (isStale) {
      isStale = false;
      await run();
    }
  };
  return () => {
    isStale = true;
    running ??= runAll().finally(() => (running = null));
    return running;
  };
}

// A second click would send the same again.
export async function disableWhile(box: HTMLElement, run: () => Promise<unknown>): Promise<void> {
  const all = box instanceof HTMLButtonElement ? [box] : [...box.querySelectorAll("button")];
  const buttons = all.filter((each) => !each.disabled);
  const focused = document.activeElement;
  for (const each of buttons) each.disabled = true;
  try {
    await run();
  } finally {
    for (const each of buttons) each.disabled = false;
    // A button that is disabled loses the focus.
    if (focused instanceof HTMLElement && document.activeElement === document.body) focused.focus({ preventScroll: true });
  }
}

type Field = HTMLInputElement | HTMLTextAreaElement;

function keyOf(session: Session, name: string): string {
  return `yamamori-draft ${session.user ?? ""} ${name}`;
}

// What is being written is kept in the browser until it is sent, also when the session ends.
export function keepDraft(field: Field, session: Session, name: string): void {
  const key = keyOf(session, name);
  field.value = localStorage.getItem(key) ?? "";
  field.addEventListener("input", () => (field.value ? localStorage.setItem(key, field.value) : localStorage.removeItem(key)));
}

// What was written since it was sent stays.
export function discardDraft(field: Field, session: Session, name: string, sent: string): void {
  if (field.value !== sent) return;
  field.value = "";
  localStorage.removeItem(keyOf(session, name));
}
