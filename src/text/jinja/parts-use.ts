// Whether a template loops over the parts of a message's content, as vLLM sees it (renderers/hf.py): then contents are given as
// parts, else as texts. Paths are names and attributes: `message.content`.

type Path = string | undefined;

export class PartsUse {
  /** The template's loops. `target` null: not one name. `macro`: the enclosing macro; null: none. */
  readonly loops: { target: string | null; path: Path; macro: string | null }[] = [];
  readonly aliases: [name: string, path: Path][] = [];
  readonly macros: [name: string, parameters: readonly string[]][] = [];
  readonly calls: {
    name: string;
    positional: readonly Path[];
    named: ReadonlyMap<string, Path>;
  }[] = [];

  get isThere(): boolean {
    const lists = new Set<Path>(["messages"]);
    // A set grows under its own iteration.
    for (const list of lists) {
      for (const [name, path] of this.aliases) if (path === list) lists.add(name);
    }
    const over = this.loops.filter(({ path }) => path !== undefined && lists.has(path));
    const contents = new Set<Path>(over.map(({ target }) => `${target}.content`));
    const isGiven = (macro: string, parameter: string) => {
      const [, parameters = []] = this.macros.find(([name]) => name === macro) ?? [];
      const at = parameters.indexOf(parameter);
      return this.calls.some(({ name, positional, named }) => {
        return (
          name === macro && (contents.has(positional[at]) || contents.has(named.get(parameter)))
        );
      });
    };
    return this.loops.some(({ path, macro }) => {
      if (path === undefined) return false;
      return contents.has(path) || (macro === null ? path === "content" : isGiven(macro, path));
    });
  }
}
