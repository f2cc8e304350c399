// Written by `make reference` from the OpenAPI document. Change nothing here.

export type ToolName = "get_budget" | "preview_spend" | "spend" | "buy" | "list_transactions";

export const TOOLS: {
  name: ToolName;
  description: string;
  inputSchema: Record<string, unknown>;
}[] = [
  {
    "name": "get_budget",
    "description": "What this agent may spend at this moment: maxAmountNow is the largest single payment that passes to an allowed recipient, maxWithoutApproval the largest that passes without a person; dailyCap, spentToday and remainingToday say how much of the day is used, spentTodayBy how far it came; resetsAt is when the day's count starts again; available is what the wallet holds. Changes nothing.",
    "inputSchema": {
      "title": "Budget",
      "type": "object",
      "properties": {
        "agentId": {
          "type": "string",
          "minLength": 1,
          "maxLength": 100,
          "description": "Leave it out: the key says whose wallet it is. No other is allowed."
        }
      },
      "additionalProperties": false
    }
  },
  {
    "name": "preview_spend",
    "description": "What `spend` would answer now for this amount and recipient. Nothing is spent, reserved or recorded, so it is safe to call at any time. If status is `rejected`: rejectCode says why, maxAmountNow what would pass, retryAt when this amount would. `pending` means that a person will have to approve it. Only `spend` itself decides: things may change in between.",
    "inputSchema": {
      "title": "Preview",
      "type": "object",
      "properties": {
        "amount": {
          "type": "string",
          "pattern": "^(0|[1-9][0-9]{0,11})(\\.[0-9]{1,6})?$",
          "examples": [
            "12.500000"
          ],
          "description": "How much, in USDC, as a decimal string: \"12.50\". Never a number."
        },
        "recipient": {
          "type": "string",
          "minLength": 3,
          "maxLength": 1024,
          "examples": [
            "api.example.com"
          ],
          "description": "Who is paid: a bare hostname such as api.example.com (no https://, no path), or a base58 Solana address."
        },
        "allowOffCurve": {
          "type": "boolean",
          "description": "True pays an address that no key can spend from, such as a program's vault."
        },
        "memo": {
          "type": "string",
          "minLength": 0,
          "maxLength": 200,
          "description": "What it is for, for the books; up to 200 characters."
        },
        "metadata": {
          "type": "object",
          "maxProperties": 50,
          "propertyNames": {
            "minLength": 1,
            "maxLength": 40
          },
          "additionalProperties": {
            "type": "string",
            "maxLength": 500
          },
          "examples": [
            {
              "team": "search"
            }
          ],
          "description": "Up to 50 pairs of your own, string values, 8 KiB in all."
        },
        "agentId": {
          "type": "string",
          "minLength": 1,
          "maxLength": 100,
          "description": "Leave it out: the key says whose wallet it is. No other is allowed."
        }
      },
      "additionalProperties": false,
      "required": [
        "amount",
        "recipient"
      ]
    }
  },
  {
    "name": "spend",
    "description": "Pays a recipient from this agent's wallet, if the policy allows it. This moves real money and cannot be undone.\nRead `status`: `approved` (reserved, being paid), `settled` (paid, final), `pending` (waits for a person's approval), or `rejected`: nothing was paid, and rejectCode says why, maxAmountNow what would pass now, retryAt when this amount would pass.\nidempotencyKey makes one purchase one payment. Choose one for each purchase, for example from the order number, and use it in no other. No answer, a timeout or an error: call again with the same key and the same arguments; it is paid once. Never take a new key just because you did not see the answer. After a `rejected` answer, or to buy again, take a new key: the old one only repeats its answer (replayed: true).",
    "inputSchema": {
      "title": "Spend",
      "type": "object",
      "properties": {
        "amount": {
          "type": "string",
          "pattern": "^(0|[1-9][0-9]{0,11})(\\.[0-9]{1,6})?$",
          "examples": [
            "12.500000"
          ],
          "description": "How much, in USDC, as a decimal string: \"12.50\". Never a number."
        },
        "recipient": {
          "type": "string",
          "minLength": 3,
          "maxLength": 1024,
          "examples": [
            "api.example.com"
          ],
          "description": "Who is paid: a bare hostname such as api.example.com (no https://, no path), or a base58 Solana address."
        },
        "allowOffCurve": {
          "type": "boolean",
          "description": "True pays an address that no key can spend from, such as a program's vault."
        },
        "memo": {
          "type": "string",
          "minLength": 0,
          "maxLength": 200,
          "description": "What it is for, for the books; up to 200 characters."
        },
        "metadata": {
          "type": "object",
          "maxProperties": 50,
          "propertyNames": {
            "minLength": 1,
            "maxLength": 40
          },
          "additionalProperties": {
            "type": "string",
            "maxLength": 500
          },
          "examples": [
            {
              "team": "search"
            }
          ],
          "description": "Up to 50 pairs of your own, string values, 8 KiB in all."
        },
        "agentId": {
          "type": "string",
          "minLength": 1,
          "maxLength": 100,
          "description": "Leave it out: the key says whose wallet it is. No other is allowed."
        },
        "idempotencyKey": {
          "type": "string",
          "minLength": 1,
          "maxLength": 255,
          "pattern": "^[!-~](?:[ -~]*[!-~])?$",
          "description": "One for each purchase, the same at every retry of it: 1 to 255 printable ASCII characters, such as order-1042."
        },
        "waitSeconds": {
          "type": "integer",
          "minimum": 0,
          "maximum": 30,
          "description": "Wait up to so many seconds for the payment to be final; 0 answers at once and is the default."
        }
      },
      "additionalProperties": false,
      "required": [
        "amount",
        "recipient",
        "idempotencyKey"
      ]
    }
  },
  {
    "name": "buy",
    "description": "Fetches a URL and, if its seller asks for money (HTTP 402), pays the price from this agent's wallet if the policy allows it, and returns what the seller answers. Use it instead of an ordinary fetch for paid APIs; what costs nothing is fetched alike. This moves real money and cannot be undone.\nRead `status`: `presented` or `paid` with a `response` is a success. `rejected`: nothing was paid, rejectCode says why. `pending`: a person has to approve it; then call continue_purchase. `presented` or `paid` without a usable `response`: call retry_purchase, which costs nothing more. Never buy the same again because its answer was lost.\nThe same method, URL, body and credentials (Authorization, Cookie) within 10 minutes are the same purchase and are paid once, unless you give each its own idempotencyKey. Set maxAmount to what it is worth to you.",
    "inputSchema": {
      "title": "Buy",
      "type": "object",
      "properties": {
        "url": {
          "type": "string",
          "format": "uri",
          "minLength": 1,
          "maxLength": 2048,
          "examples": [
            "https://api.example.com/weather?city=Berlin"
          ],
          "description": "What to buy: https, a public host, no user info, no fragment. Its host is the recipient that the policy judges."
        },
        "method": {
          "type": "string",
          "enum": [
            "GET",
            "HEAD",
            "POST",
            "PUT",
            "PATCH",
            "DELETE",
            "OPTIONS"
          ],
          "description": "How to ask for it; `GET` unless given."
        },
        "headers": {
          "type": "object",
          "maxProperties": 50,
          "propertyNames": {
            "pattern": "^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}$"
          },
          "additionalProperties": {
            "type": "string",
            "maxLength": 262144
          },
          "examples": [
            {
              "Accept": "application/json"
            }
          ],
          "description": "Headers to send, at most 50. Not those of the connection (such as `Host`, `Content-Length`, `Connection`) and not those that pay."
        },
        "body": {
          "type": "string",
          "minLength": 0,
          "maxLength": 262144,
          "description": "What to send as the body, in UTF-8."
        },
        "maxAmount": {
          "type": "string",
          "pattern": "^(0|[1-9][0-9]{0,11})(\\.[0-9]{1,6})?$",
          "examples": [
            "12.500000"
          ],
          "description": "The most you would pay for it, in USDC, as a decimal string: \"0.05\"."
        },
        "idempotencyKey": {
          "type": "string",
          "minLength": 1,
          "maxLength": 255,
          "pattern": "^[!-~](?:[ -~]*[!-~])?$",
          "description": "One for each purchase, the same at every retry of it. Give one to buy the same twice within 10 minutes."
        },
        "waitSeconds": {
          "type": "integer",
          "minimum": 0,
          "maximum": 30,
          "description": "Wait up to so many seconds for the payment to be final; 0 answers at once and is the default."
        },
        "memo": {
          "type": "string",
          "minLength": 0,
          "maxLength": 200,
          "description": "What it is for, for the books."
        },
        "metadata": {
          "type": "object",
          "maxProperties": 50,
          "propertyNames": {
            "minLength": 1,
            "maxLength": 40
          },
          "additionalProperties": {
            "type": "string",
            "maxLength": 500
          },
          "examples": [
            {
              "team": "search"
            }
          ],
          "description": "Up to 50 pairs of your own, string values."
        },
        "agentId": {
          "type": "string",
          "minLength": 1,
          "maxLength": 100,
          "description": "Leave it out: the key says whose wallet it is. No other is allowed."
        }
      },
      "additionalProperties": false,
      "required": [
        "url"
      ]
    }
  },
  {
    "name": "list_transactions",
    "description": "This agent's spends, newest first, refused ones too. Use it to see whether a purchase was already made before making it again. Filters can be combined.",
    "inputSchema": {
      "title": "Transactions",
      "type": "object",
      "properties": {
        "status": {
          "type": "string",
          "enum": [
            "all",
            "pending",
            "approved",
            "settled",
            "rejected"
          ],
          "description": "Only those in this state."
        },
        "recipient": {
          "type": "string",
          "minLength": 3,
          "maxLength": 1024,
          "examples": [
            "api.example.com"
          ],
          "description": "Only those to this hostname or address."
        },
        "from": {
          "type": "string",
          "minLength": 8,
          "maxLength": 40,
          "description": "Created from this date or time on: 2026-11-30."
        },
        "to": {
          "type": "string",
          "minLength": 8,
          "maxLength": 40,
          "description": "Created before this time; a bare date is included."
        },
        "limit": {
          "type": "integer",
          "minimum": 1,
          "maximum": 100,
          "description": "How many; 20 by default, at most 100."
        },
        "after": {
          "type": "string",
          "minLength": 1,
          "maxLength": 1000,
          "description": "`nextCursor` of the page before."
        },
        "agentId": {
          "type": "string",
          "minLength": 1,
          "maxLength": 100,
          "description": "Leave it out: the key says whose wallet it is. No other is allowed."
        }
      },
      "additionalProperties": false
    }
  },
];
