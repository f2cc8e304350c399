/** One page. `nextCursor`, as `after` of the same list, gives the one behind it. */
export interface Page<T> {
  data: T[];
  hasMore: boolean;
  nextCursor: string | null;
}

/**
 * A list that reads its pages as you go, each row once, newest first. Asks nothing until then.
 *
 *     for await (const agent of bursar.agents.list()) …
 */
export class Pages<T> implements AsyncIterable<T> {
  readonly #read: (after?: string) => Promise<Page<T>>;

  /** @internal */
  constructor(read: (after?: string) => Promise<Page<T>>) {
    this.#read = read;
  }

  /** One request: the first page, or the one after the cursor that was given. */
  page(): Promise<Page<T>> {
    return this.#read();
  }

  async *pages(): AsyncGenerator<Page<T>, void, undefined> {
    let page = await this.#read();
    yield page;
    while (page.hasMore && page.nextCursor !== null) {
      page = await this.#read(page.nextCursor);
      yield page;
    }
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<T, void, undefined> {
    for await (const page of this.pages()) yield* page.data;
  }
}
