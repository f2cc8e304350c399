-- wrk: spends spread over the agents in a file of "key agent" lines, each with its own
-- Idempotency-Key. Arguments: the file, and a name for this run that makes the keys unique.
local lines, thread_count = {}, 0

function setup(thread)
  thread:set("thread_number", thread_count)
  thread_count = thread_count + 1
end

function init(args)
  for line in io.lines(args[1]) do
    local key, agent = line:match("(%S+) (%S+)")
    lines[#lines + 1] = { key, agent }
  end
  run_name = args[2]
  count = 0
  math.randomseed(tonumber(args[3] or "1") + thread_number)
end

function request()
  count = count + 1
  local pick = lines[math.random(#lines)]
  local headers = {
    ["Authorization"] = "Bearer " .. pick[1],
    ["Content-Type"] = "application/json",
    ["Idempotency-Key"] = run_name .. "-" .. thread_number .. "-" .. count,
  }
  local body = '{"agentId":"' .. pick[2] .. '","amount":"0.01","recipient":"api'
    .. math.random(20) .. '.example.com","memo":"order ' .. count .. '"}'
  return wrk.format("POST", "/v1/spend/authorise", headers, body)
end

local refused = 0
function response(status)
  if status ~= 201 then refused = refused + 1 end
end

function done(summary, latency)
  io.write(string.format(
    "RESULT requests=%d seconds=%.3f errors=%d p50_us=%d p99_us=%d p999_us=%d\n",
    summary.requests, summary.duration / 1e6,
    summary.errors.status + summary.errors.connect + summary.errors.read + summary.errors.timeout,
    latency:percentile(50), latency:percentile(99), latency:percentile(99.9)))
end
