// What gpupoold is told by its configuration file and its command line (docs/configuration.md, "Server").
//
// Ownership: values, immutable once the daemon runs, so every thread may read them. Errors: name the file, the line and
// the key, and say what is expected.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/result.h"
#include "protocol/transport/endpoint.h"

namespace gpupool::daemon {

using std::chrono::milliseconds;

struct Config {
    std::vector<std::string> listen{transport::kDefaultAddress};  // the first names this daemon among others
    bool local = true;            // beside each TCP address, also at a local name for shared memory
    std::string driver = "auto";  // auto, software, or the path of a driver library
    std::string log_level = "info";
    std::string log_file;           // empty: stderr
    std::string runtime_directory;  // empty: supervision::default_runtime_root()
    std::string worker;             // path of gpupool-worker, empty: found beside the daemon

    std::string image_directory;  // empty: default_image_directory(); "off": code images are not kept
    std::uint64_t image_limit_bytes = std::uint64_t{8} << 30;

    std::optional<std::size_t> stock_workers;  // nothing said: 1 for a GPU, 0 for the software GPU
    bool stock_contexts = true;                // each of them makes a context, which holds device memory

    bool one_tenant = false;  // all sessions are one user's, whatever their tokens

    std::vector<std::string> tokens;  // none: everybody may connect
    std::string token_file;           // more of them, one a line

    std::size_t max_sessions = 64;
    std::size_t max_handshakes = 64;  // connections that have not said who they are
    std::size_t max_hello_bytes = 64u << 10;
    std::uint64_t session_memory_bytes = 0;            // the most that one session may hold; 0: all there is
    std::optional<std::uint64_t> shared_memory_bytes;  // pinned memory that one session may share with its worker;
                                                       // nothing said: a quarter of this machine's memory
    std::size_t max_lanes = 8;                         // data connections of a session besides its own
    std::optional<std::size_t> issuers;  // threads of a session that issue launches besides its dispatcher; nothing
                                         // said: 3 on eight processors or more, else none
    milliseconds handshake_timeout{10000};

    milliseconds daemon_grace{60000};  // how long workers outlive a daemon that is gone
    milliseconds stop_timeout{3000};   // for workers to end in order when the daemon stops
    milliseconds worker_start_timeout{30000};
    milliseconds worker_silence_timeout{30000};
    milliseconds worker_ending_timeout{900};
    milliseconds probe_timeout{60000};
};

// Addresses that one daemon listens at.
inline constexpr std::size_t kMaxAddresses = 16;
// Are these such, and no two the same, whether or not they can be had?
Status check_addresses(const std::vector<std::string>& addresses);

// Of `stock.workers`.
inline constexpr std::int64_t kMaxStock = 64;
// What `images.limit` may be as text.
Result<std::uint64_t> parse_image_limit(const std::string& text);

// Reads a TOML file over `config`. Unknown keys and values of the wrong kind are refused.
Status read_config_file(const std::string& path, Config& config);

// Reads `config.token_file`, if any, into `config.tokens`.
Status read_token_file(Config& config);

// The path that the setting means; empty where code images are not kept. A path that cannot be one is refused.
Status choose_image_directory(Config& config);

// Makes the directory of kept code images, or empties the setting: without a place to keep them all else works, so that
// is a warning.
void prepare_image_directory(Config& config);

// Sends the log where `config` says.
Status set_up_log(const Config& config);

}  // namespace gpupool::daemon
