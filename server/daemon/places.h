// The places for sessions: decides which requests get one, which wait for one, and which are refused.
//
// This is the one spot where the daemon asks for an admission. Today the rules are a number of sessions and the
// accounts of device memory, and no request waits.
//
// Ownership: a granted place belongs to its session and ends with it. The Places outlive them.
// Threads: the loop's.
// Errors: a Refusal says what did not fit, for the client's user.
#pragma once

#include <cstddef>
#include <string>
#include <variant>
#include <vector>

#include "server/daemon/accounts.h"
#include "server/daemon/config.h"
#include "server/daemon/reception.h"
#include "server/daemon/worker_process.h"

namespace gpupool::daemon {

class Places {
  public:
    // `stock_contexts`: how many workers in stock hold a context on the first device.
    Places(const Config& config, const DriverFacts& driver, std::size_t stock_contexts);

    using Decision = std::variant<Accounts::Place, Queued, Refusal>;
    // `sessions`: how many there are. `visible`: as for Accounts::enter(). A request that is Queued is asked for again
    // when a session has ended, and over with withdraw().
    Decision ask(const Admission& admission, RequestId request, std::size_t sessions,
                 const std::optional<std::string>& visible);
    void withdraw(RequestId request);

    // The place of a session that an earlier daemon admitted.
    Result<Accounts::Place> adopt(const std::string& job, std::size_t slot, const std::vector<std::string>& uuids,
                                  UniqueFd account) {
        return accounts_.adopt(job, slot, uuids, std::move(account));
    }

  private:
    const Config& config_;
    const std::size_t devices_;
    Accounts accounts_;
};

}  // namespace gpupool::daemon
