// The users of the server and what is kept of them: the policy, the tokens, usage and the audit log.
//
// The policy comes from the configuration file, live changes and further tokens from the store (server/policy/store.h).
// The store and the file are read and written on the background thread; what they say is installed on the loop.
//
// Ownership: owns the store. Threads: the loop's.
// Errors: a server whose store cannot be opened serves, with a warning, and refuses what needs the store.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "common/result.h"
#include "protocol/messages/administration.h"
#include "server/daemon/config.h"
#include "server/daemon/loop.h"
#include "server/policy/audit.h"
#include "server/policy/policy.h"
#include "server/policy/store.h"
#include "server/policy/tokens.h"
#include "server/policy/usage.h"

namespace gpupool::daemon {

// Milliseconds since 1970.
std::int64_t unix_now_ms();

class Tenancy {
  public:
    // Reads the policy and opens the store. Blocks: call it before the server serves.
    static Result<std::unique_ptr<Tenancy>> open(Loop& loop, Background& background, const Config& config);
    ~Tenancy();
    Tenancy(const Tenancy&) = delete;

    // The owner of a token; nullopt: it is not one of this server's.
    [[nodiscard]] std::optional<policy::Identity> identify(std::string_view token) const;
    // Anyone may connect.
    [[nodiscard]] bool open_to_all() const { return tokens_.open(); }
    [[nodiscard]] const std::shared_ptr<const policy::Policy>& policy() const { return policy_; }
    // Called when there is another policy.
    void on_change(std::function<void()> changed) { changed_ = std::move(changed); }
    // Reads the file again. A file that cannot be read changes nothing.
    void reload();

    using Answer = messages::AdministrationAnswer;
    using Work = std::function<Result<Answer>(policy::Store&)>;
    enum class Access { reads, changes };
    // Runs `work` in the background, installs what it changed, and then calls `done`.
    void in_store(Access access, Work work, std::function<void(Answer)> done);

    [[nodiscard]] policy::UsageMeter& usage() { return usage_; }
    [[nodiscard]] policy::Moment now() const;
    // Writes what was counted to the store; `done` is called then.
    void flush_usage(std::function<void()> done = [] {});
    void audit(policy::AuditRecord record);
    // Writes what is left. Blocks.
    void close();

  private:
    struct Kept;  // what the background thread uses
    struct Installed;

    Tenancy(Loop& loop, Background& background, const Config& config);
    // The policy and the tokens of the files and the store together.
    static Result<Installed> combine(Kept& kept);
    void install(Installed installed);

    Loop& loop_;
    Background& background_;
    const Config& config_;
    const std::shared_ptr<Kept> kept_;
    std::shared_ptr<const policy::Policy> policy_;
    policy::TokenTable tokens_;
    policy::UsageMeter usage_;
    std::function<void()> changed_ = [] {};
    Timer flushing_;
};

}  // namespace gpupool::daemon
