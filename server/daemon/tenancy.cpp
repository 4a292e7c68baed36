#include "server/daemon/tenancy.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <future>
#include <utility>
#include <vector>

#include "common/log.h"

namespace gpupool::daemon {

namespace {

constexpr std::chrono::seconds kFlushInterval{60};

}  // namespace

// Used by one thread at a time: open()'s until the server serves, then the background thread.
struct Tenancy::Kept {
    std::optional<policy::Store> store;
    std::optional<policy::AuditLog> audit;
    std::string why_no_store;
    std::shared_ptr<const policy::Policy> of_file;  // without live changes
};

struct Tenancy::Installed {
    std::shared_ptr<const policy::Policy> policy;
    policy::TokenTable tokens;
};

namespace {

Status make_directory(const std::string& path) {
    std::error_code error;
    std::filesystem::create_directories(path, error);
    if (error) {
        return Error{ErrorCode::system, fmt::format("cannot make the directory {}: {}", path, error.message())};
    }
    ::chmod(path.c_str(), 0700);  // it has the hashes of tokens
    return {};
}

}  // namespace

std::int64_t unix_now_ms() {
    return std::chrono::duration_cast<milliseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

Tenancy::Tenancy(Loop& loop, Background& background, const Config& config)
    : loop_(loop), background_(background), config_(config), kept_(std::make_shared<Kept>()), flushing_(loop, [this] {
          flush_usage();
          flushing_.set_after(kFlushInterval);
      }) {}

Tenancy::~Tenancy() = default;

Result<Tenancy::Installed> Tenancy::combine(Kept& kept) {
    std::vector<policy::KnownToken> tokens = kept.of_file->tokens();
    policy::Overrides overrides;
    bool any = false;
    if (kept.store) {
        auto stored = kept.store->tokens(unix_now_ms(), &any);
        if (!stored) {
            return stored.error();
        }
        tokens.insert(tokens.end(), stored->begin(), stored->end());
        auto changes = kept.store->overrides();
        if (!changes) {
            return changes.error();
        }
        overrides = std::move(*changes);
    }
    std::vector<std::string> unusable;
    auto policy = std::make_shared<const policy::Policy>(kept.of_file->with(overrides, &unusable));
    for (const std::string& change : unusable) {
        log::warn("a live change of a limit cannot be used: {}", change);
    }
    return Installed{std::move(policy), policy::TokenTable(std::move(tokens), any)};
}

Result<std::unique_ptr<Tenancy>> Tenancy::open(Loop& loop, Background& background, const Config& config) {
    std::unique_ptr<Tenancy> tenancy(new Tenancy(loop, background, config));
    Kept& kept = *tenancy->kept_;
    auto policy = policy::Policy::load(config.file, config.token_file);
    if (!policy) {
        return policy.error();
    }
    kept.of_file = std::make_shared<const policy::Policy>(std::move(*policy));
    if (config.state_directory.empty()) {
        kept.why_no_store = "this server keeps nothing (state_directory is off)";
    } else {
        Status made = make_directory(config.state_directory);
        if (made) {
            auto store = policy::Store::open(config.state_directory + "/gpupool.db");
            auto audit = policy::AuditLog::open(config.state_directory + "/audit.log", {});
            made = store ? Status() : Status(store.error());
            if (store) {
                kept.store.emplace(std::move(*store));
            }
            if (audit) {
                kept.audit.emplace(std::move(*audit));
            } else {
                log::warn("no audit log: {}", audit.error().message);
            }
        }
        if (!made) {
            kept.why_no_store = fmt::format("this server cannot keep anything: {}", made.error().message);
            log::warn("tenants, usage and live changes are not kept: {}", made.error().message);
        }
    }
    auto installed = combine(kept);
    if (!installed) {
        return installed.error();
    }
    tenancy->install(std::move(*installed));
    tenancy->flushing_.set_after(kFlushInterval);
    return tenancy;
}

void Tenancy::install(Installed installed) {
    policy_ = std::move(installed.policy);
    tokens_ = std::move(installed.tokens);
    changed_();
}

std::optional<policy::Identity> Tenancy::identify(std::string_view token) const {
    auto identity = tokens_.identify(token, unix_now_ms());
    if (tokens_.open() || (identity && config_.one_tenant)) {
        identity = policy::Identity{policy::Role::anonymous, std::string(policy::kAnonymous)};
    }
    return identity;
}

void Tenancy::reload() {
    background_.run(
        [kept = kept_, file = config_.file, token_file = config_.token_file]() -> Result<Installed> {
            auto policy = policy::Policy::load(file, token_file);
            if (!policy) {
                return policy.error();
            }
            kept->of_file = std::make_shared<const policy::Policy>(std::move(*policy));
            return combine(*kept);
        },
        [this](Result<Installed> installed) {
            if (!installed) {
                log::error("the policy stays as it is: {}", installed.error().message);
                return;
            }
            log::info("the policy was read again");
            install(std::move(*installed));
        });
}

void Tenancy::in_store(Access access, Work work, std::function<void(Answer)> done) {
    struct Outcome {
        Answer answer;
        std::optional<Installed> installed;
    };
    background_.run(
        [kept = kept_, access, work = std::move(work)]() -> Outcome {
            if (!kept->store) {
                return {messages::AdministrationError{kept->why_no_store}, {}};
            }
            auto answer = work(*kept->store);
            if (!answer) {
                return {messages::AdministrationError{answer.error().message}, {}};
            }
            if (access == Access::reads) {
                return {std::move(*answer), {}};
            }
            auto installed = combine(*kept);
            if (!installed) {
                return {messages::AdministrationError{installed.error().message}, {}};
            }
            return {std::move(*answer), std::move(*installed)};
        },
        [this, done = std::move(done)](Outcome outcome) {
            if (outcome.installed) {
                install(std::move(*outcome.installed));
            }
            done(std::move(outcome.answer));
        });
}

policy::Moment Tenancy::now() const {
    return {std::chrono::duration_cast<milliseconds>(loop_.now().time_since_epoch()).count(), unix_now_ms()};
}

void Tenancy::flush_usage(std::function<void()> done) {
    auto rows = usage_.take(now());
    background_.run(
        [kept = kept_, rows = std::move(rows)]() -> std::vector<policy::UsageRow> {
            if (rows.empty() || !kept->store) {
                return {};
            }
            if (const Status added = kept->store->add_usage(rows); !added) {
                log::warn("usage cannot be stored, and is tried again: {}", added.error().message);
                return rows;
            }
            return {};
        },
        [this, done = std::move(done)](const std::vector<policy::UsageRow>& rest) {
            usage_.give_back(rest);
            done();
        });
}

void Tenancy::audit(policy::AuditRecord record) {
    record.unix_ms = unix_now_ms();
    background_.run(
        [kept = kept_, record = std::move(record)] {
            if (kept->audit) {
                if (const Status written = kept->audit->write(record); !written) {
                    log::warn("the audit log cannot be written: {}", written.error().message);
                }
            }
            return 0;
        },
        [](int) {});
}

void Tenancy::close() {
    flushing_.cancel();
    flush_usage();
    std::promise<void> written;
    background_.run(
        [&written] {
            written.set_value();
            return 0;
        },
        [](int) {});
    written.get_future().wait();
}

}  // namespace gpupool::daemon
