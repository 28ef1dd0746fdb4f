// Keeps what the user typed in this browser tab, so that a reload loses nothing. Files and the API key are not kept.

const PREFIX = "triptych-inputs-";

function read(id) {
  try {
    return JSON.parse(sessionStorage.getItem(PREFIX + id)) ?? {};
  } catch {
    return {};
  }
}

const isKept = ({ control }) => control && control.type !== "file";
const valueOf = (control) => (control.type === "checkbox" ? control.checked : control.value);

/** Whether a field can have a value: a choice has only what it offers. */
const offers = ({ options }, value) => !options || [...options].some((one) => one.value === value);

/** Put back what was typed in the fields of a form. id: name of the form. */
export function restoreInputs(id, fields) {
  const kept = read(id);
  for (const { name, control } of fields.filter(isKept)) {
    const value = kept[name];
    if (typeof value === "boolean" && control.type === "checkbox") {
      control.checked = value;
    } else if (typeof value === "string" && offers(control, value)) {
      control.value = value;
    }
  }
}

export function keepInputs(id, fields) {
  const values = Object.fromEntries(fields.filter(isKept).map(({ name, control }) => [name, valueOf(control)]));
  try {
    sessionStorage.setItem(PREFIX + id, JSON.stringify({ ...read(id), ...values }));
  } catch {
    // The storage is full: a long text is then lost at a reload, as in any other form.
  }
}
