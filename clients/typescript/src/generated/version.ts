// Written by `make reference` from the OpenAPI document. Change nothing here.

export const VERSION = "0.1.0";
