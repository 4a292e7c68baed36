// The settings of gpupoold, from its configuration file and command line (docs/configuration.md, "Server").
//
// Ownership: values, immutable once the daemon runs, so every thread may read them.
// Errors: messages name the file, the line and the key, and say what is expected.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/quotas.h"
#include "common/result.h"
#include "protocol/transport/endpoint.h"
#include "server/isolation/sandbox.h"

namespace gpupool::daemon {

using std::chrono::milliseconds;

struct Config {
    std::vector<std::string> listen{transport::kDefaultAddress};  // the first names the runtime directory
    std::string metrics;          // where the metrics are served by HTTP, HOST:PORT; empty: nowhere
    bool local = true;            // for each TCP address, listen at a local name for shared memory too
    std::string driver = "auto";  // auto, software, or the path of a driver library
    std::string log_level = "info";
    std::string log_file;           // empty: stderr
    std::string runtime_directory;  // empty: supervision::default_runtime_root()
    std::string worker;             // path of gpupool-worker, empty: found beside the daemon

    std::string image_directory;  // empty: default_image_directory(); "off": code images are not kept
    std::uint64_t image_limit_bytes = std::uint64_t{8} << 30;

    std::optional<std::size_t> stock_workers;  // unset: 1 for a GPU, 0 for the software GPU
    bool stock_contexts = true;                // each creates a context, which uses device memory

    std::optional<std::string> worker_users;  // a range of user ids, or off; unset: a default range, if it can be used
    isolation::Seccomp seccomp = isolation::Seccomp::enforce;
    bool landlock = true;  // if the kernel has it

    bool one_tenant = false;  // all sessions belong to one tenant, whatever their tokens

    std::string file;             // the configuration file, which has the policy as well; empty: none
    std::string token_file;       // of the command line: tokens, one per line, in place of auth.token_file
    std::string state_directory;  // empty: choose_state_directory(); "off": tenants, usage and changes are not kept

    std::size_t max_handshakes = 64;  // pending connections
    std::size_t max_hello_bytes = 64u << 10;
    Quotas session_memory;                             // of one session or job; none: all device memory
    std::optional<std::uint64_t> shared_memory_bytes;  // pinned memory that one session may share with its worker;
                                                       // unset: a quarter of this machine's memory
    std::size_t max_lanes = 8;                         // lanes of a session
    std::optional<std::size_t> issuers;  // threads of a session that issue launches beside its dispatcher; unset: 3 on
                                         // eight processors or more, else none
    milliseconds handshake_timeout{10000};

    milliseconds daemon_grace{60000};  // how long workers outlive their daemon
    milliseconds stop_timeout{3000};   // for workers to end in order when the daemon stops
    milliseconds worker_start_timeout{30000};
    milliseconds worker_silence_timeout{30000};
    milliseconds worker_ending_timeout{900};
    milliseconds probe_timeout{60000};
};

// Maximum number of addresses that one daemon listens at.
inline constexpr std::size_t kMaxAddresses = 16;
// Checks that the addresses are well-formed and distinct. Does not check that they are available.
Status check_addresses(const std::vector<std::string>& addresses);

// Checks the text of `metrics`.
Status check_metrics_address(const std::string& address);

// Maximum of `stock.workers`.
inline constexpr std::int64_t kMaxStock = 64;
// Parses the text of `images.limit`.
Result<std::uint64_t> parse_image_limit(const std::string& text);

// Reads a TOML file over `config`. Refuses unknown keys and values of the wrong type.
Status read_config_file(const std::string& path, Config& config);

// The next daemon at the same address uses the same name.
std::string runtime_name(const transport::Endpoint& address);

// Replaces `state_directory` by the path that it stands for; empty if nothing is kept. Refuses a relative path.
Status choose_state_directory(Config& config);

// Replaces `image_directory` by the path that it stands for; empty if code images are not kept. Refuses a relative
// path.
Status choose_image_directory(Config& config);

// Makes the directory of kept code images. If that fails, logs a warning and clears the setting, since the daemon works
// without it.
void prepare_image_directory(Config& config);

// Sends the log where `config` says.
Status set_up_log(const Config& config);

}  // namespace gpupool::daemon
