// The audit log: sessions that were admitted, refused and ended, and changes of tenants and limits, each with the user
// who caused it. One JSON object a line, so that grep, jq and log collectors read it.
//
// The file grows to `most_bytes`, then becomes PATH.1 (and PATH.1 becomes PATH.2, up to `kept` of them).
//
// Ownership: owns the file. Threads: one at a time; a record is one write to the disk's cache.
// Errors: Result; a record that cannot be written is lost, and the daemon logs that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "common/result.h"
#include "common/unique_fd.h"

namespace gpupool::policy {

enum class AuditEvent : std::uint8_t {
    admitted,  // a session got its place
    refused,   // a session, or a peer with a wrong token
    changed,   // limits, tokens, tenants
    ended,     // a session
};

struct AuditRecord {
    std::int64_t unix_ms = 0;
    AuditEvent event = AuditEvent::changed;
    std::string by;       // "tenant alice", "administrator ops", "user 0", "server"
    std::string tenant;   // concerned; empty: none
    std::string session;  // likewise
    std::string job;
    std::string peer;
    std::string reason;  // a sentence
    std::map<std::string, std::string> details;
};

// The line of a record, with its end. Texts are cut so that it has at most kMaxAuditLineBytes.
std::string audit_line(const AuditRecord& record);
inline constexpr std::size_t kMaxAuditLineBytes = 16u << 10;

class AuditLog {
  public:
    struct Size {
        std::uint64_t most_bytes = std::uint64_t{16} << 20;
        std::size_t kept = 4;  // older files
    };

    // The file is made with mode 0600.
    static Result<AuditLog> open(const std::string& path, Size size);
    Status write(const AuditRecord& record);

  private:
    AuditLog(std::string path, Size size, UniqueFd file, std::uint64_t bytes)
        : path_(std::move(path)), size_(size), file_(std::move(file)), bytes_(bytes) {}
    Status open_file();
    Status rotate();

    std::string path_;
    Size size_;
    UniqueFd file_;
    std::uint64_t bytes_ = 0;
};

}  // namespace gpupool::policy
