// The Supervisor's answers to administration connections.
//
// An administrator may ask for everything. A tenant sees its own sessions, limits and usage. Without tokens all clients
// are the anonymous tenant, and only the server's own user and root, on this host, administer.
#include <capnp/serialize.h>
#include <fmt/format.h>
#include <kj/exception.h>

#include <cstring>
#include <utility>

#include "common/log.h"
#include "protocol/schema/control.capnp.h"
#include "server/daemon/status_message.h"
#include "server/daemon/supervisor.h"

namespace gpupool::daemon {

namespace {

using Reply = std::function<void(messages::AdministrationAnswer)>;
using policy::Role;
using policy::Scope;

template <class... Functions>
struct Overloaded : Functions... {
    using Functions::operator()...;
};
template <class... Functions>
Overloaded(Functions...) -> Overloaded<Functions...>;

std::string text_of(const policy::Identity& who) {
    switch (who.role) {
        case Role::administrator: return who.name.starts_with("user ") ? who.name : "administrator " + who.name;
        case Role::tenant: return "tenant " + who.name;
        case Role::anonymous: break;
    }
    return std::string(policy::kAnonymous);
}

// Whether a tenant may ask for it: its own limits and usage.
bool concerns_only(const messages::AdministrationRequest& request, const std::string& tenant) {
    if (const auto* limits = std::get_if<messages::ShowLimits>(&request)) {
        return limits->scope.kind == messages::LimitScope::Kind::tenant && limits->scope.name == tenant;
    }
    const auto* usage = std::get_if<messages::ShowUsage>(&request);
    return usage != nullptr && usage->tenant == tenant;
}

Scope scope_of(const messages::LimitScope& scope) {
    switch (scope.kind) {
        case messages::LimitScope::Kind::tenant: return {Scope::Kind::tenant, scope.name};
        case messages::LimitScope::Kind::session: return {Scope::Kind::session, scope.name};
        case messages::LimitScope::Kind::everyone: break;
    }
    return {};
}

messages::LimitList limits_of(const policy::Policy& policy, const std::string& tenant, const std::string& session) {
    messages::LimitList list;
    for (const policy::ShownLimit& shown : policy.show(tenant, session)) {
        list.limits.push_back({std::string(policy::facts_of(shown.limit).key),
                               policy::format_limit(shown.limit, shown.value), shown.origin});
    }
    return list;
}

messages::TenantFacts facts_of(const policy::StoredTenant& stored) {
    messages::TenantFacts facts;
    facts.name = stored.identity.name;
    facts.administrator = stored.identity.role == Role::administrator;
    facts.added_ms = stored.added_ms;
    for (const policy::StoredToken& token : stored.tokens) {
        facts.tokens.push_back(
            {static_cast<std::uint64_t>(token.id), token.fingerprint, token.made_ms, token.ends_ms.value_or(0)});
    }
    return facts;
}

messages::NewToken new_token(const std::string& name, const policy::IssuedToken& issued) {
    return {name, static_cast<std::uint64_t>(issued.id), issued.token};
}

// For the audit log: the new value of each limit.
std::map<std::string, std::string> details_of(const messages::ChangeLimits& change) {
    std::map<std::string, std::string> details;
    for (const messages::LimitText& set : change.set) {
        details[set.key] = set.value;
    }
    for (const std::string& key : change.unset) {
        details[key] = "unset";
    }
    return details;
}

Result<Tenancy::Answer> change(policy::Store& store, const messages::ChangeLimits& change, const std::string& by) {
    std::vector<std::pair<std::string, std::string>> checked;
    for (const messages::LimitText& set : change.set) {
        auto text = policy::check_override(set.key, set.value);
        if (!text) {
            return text.error();
        }
        checked.emplace_back(set.key, std::move(*text));
    }
    for (const std::string& key : change.unset) {
        if (policy::find_limit(key) == nullptr) {
            return Error{ErrorCode::invalid_input, fmt::format("there is no limit {}", key)};
        }
    }
    const Scope scope = scope_of(change.scope);
    for (const auto& [key, text] : checked) {
        GPUPOOL_TRY(store.set_override(scope, key, text, by, unix_now_ms()));
    }
    for (const std::string& key : change.unset) {
        GPUPOOL_TRY(store.set_override(scope, key, std::nullopt, by, unix_now_ms()));
    }
    return Tenancy::Answer(messages::LimitList());
}

// The memory that the change gives a session; nullopt: it changes other limits only.
Result<std::optional<Quotas>> memory_of(const messages::ChangeLimits& change) {
    const std::string_view memory = policy::facts_of(policy::Limit::memory).key;
    if (std::find(change.unset.begin(), change.unset.end(), memory) != change.unset.end()) {
        return Error{ErrorCode::invalid_input,
                     "the memory of a session that runs cannot be unset, only set to another amount"};
    }
    for (const messages::LimitText& set : change.set) {
        if (set.key == memory) {
            auto value = policy::parse_limit(policy::Limit::memory, set.value);
            if (!value) {
                return value.error();
            }
            return std::optional(std::move(value->quotas));
        }
    }
    return std::optional<Quotas>();
}

}  // namespace

void Supervisor::answer(const Admission& admission, std::span<const std::byte> request,
                        std::function<void(Answer)> reply) {
    auto words = kj::heapArray<capnp::word>(request.size() / sizeof(capnp::word));
    std::memcpy(words.begin(), request.data(), words.asBytes().size());
    try {
        capnp::FlatArrayMessageReader reader(words, supervision::bounded_reader(request.size()));
        switch (reader.getRoot<schema::Control>().which()) {
            case schema::Control::STATUS_REQUEST: reply(status_for(admission.identity)); return;
            case schema::Control::ADMINISTRATION_REQUEST: {
                auto asked = messages::read_request(request);
                if (!asked) {
                    reply(messages::answer_payload(messages::AdministrationError{asked.error().message}));
                    return;
                }
                serve(admission.identity, std::move(*asked),
                      [reply = std::move(reply)](const messages::AdministrationAnswer& answer) {
                          reply(messages::answer_payload(answer));
                      });
                return;
            }
            default: break;
        }
    } catch (const kj::Exception& exception) {
        log::info("a request cannot be read: {}", exception.getDescription().cStr());
    }
    reply(Refusal{schema::Refused::Reason::PROTOCOL,
                  "this server does not know the request: install the same version of gpupool on both machines"});
}

std::vector<std::byte> Supervisor::status_for(const policy::Identity& who) {
    const bool all = who.role != Role::tenant;
    const ServerFacts facts{parts_.address,
                            parts_.driver,
                            loop_.now() - started_,
                            plan_.size(),
                            nvml_.get(),
                            &places_.pool(),
                            all ? std::nullopt : std::optional(who.name)};
    std::vector<WaitingRequest> waiting;
    for (const Places::Waiter& waiter : places_.waiters()) {
        if (auto facts_of_it = reception_->waiting(waiter.request)) {
            if (all || facts_of_it->tenant == who.name) {
                facts_of_it->position = waiter.waiting.position;
                facts_of_it->why = waiter.waiting.why;
                waiting.push_back(std::move(*facts_of_it));
            }
        }
    }
    return make_status_message(facts, sessions_, waiting);
}

void Supervisor::serve(const policy::Identity& who, messages::AdministrationRequest request, Reply reply) {
    if (who.role != Role::administrator && !concerns_only(request, who.name)) {
        reply(
            messages::AdministrationError{"this needs an administrator's token (gpupool tenant add --administrator), "
                                          "or the server's own user or root on the server's host"});
        return;
    }
    const std::string by = text_of(who);
    const auto record = [this, by](const std::string& tenant, const std::string& session, const std::string& what,
                                   std::map<std::string, std::string> details = {}) {
        log::info("{}: {}", by, what);
        policy::AuditRecord changed;
        changed.by = by;
        changed.tenant = tenant;
        changed.session = session;
        changed.reason = what;
        changed.details = std::move(details);
        tenancy_.audit(std::move(changed));
    };
    const auto recording = [record](Reply then, std::string tenant, std::string what) -> Reply {
        return [record, then = std::move(then), tenant = std::move(tenant),
                what = std::move(what)](messages::AdministrationAnswer answer) {
            if (!std::holds_alternative<messages::AdministrationError>(answer)) {
                record(tenant, "", what);
            }
            then(std::move(answer));
        };
    };
    std::visit(
        Overloaded{
            [&](const messages::ListTenants&) {
                tenancy_.in_store(
                    Tenancy::Access::reads,
                    [](policy::Store& store) -> Result<Tenancy::Answer> {
                        auto stored = store.list(unix_now_ms());
                        if (!stored) {
                            return stored.error();
                        }
                        messages::TenantList list;
                        for (const policy::StoredTenant& tenant : *stored) {
                            list.tenants.push_back(facts_of(tenant));
                        }
                        return Tenancy::Answer(std::move(list));
                    },
                    [this, reply](messages::AdministrationAnswer answer) {
                        if (auto* list = std::get_if<messages::TenantList>(&answer)) {
                            complete(*list);
                        }
                        reply(std::move(answer));
                    });
            },
            [&](const messages::AddTenant& add) {
                tenancy_.in_store(
                    Tenancy::Access::changes,
                    [add](policy::Store& store) -> Result<Tenancy::Answer> {
                        GPUPOOL_TRY(policy::check_name(add.name));
                        const auto issued = store.add(
                            {add.administrator ? Role::administrator : Role::tenant, add.name}, unix_now_ms());
                        return issued ? Result<Tenancy::Answer>(new_token(add.name, *issued)) : issued.error();
                    },
                    recording(reply, add.name, "added " + add.name));
            },
            [&](const messages::RotateToken& rotate) {
                tenancy_.in_store(
                    Tenancy::Access::changes,
                    [rotate](policy::Store& store) -> Result<Tenancy::Answer> {
                        const auto issued = store.rotate(rotate.name, rotate.grace, unix_now_ms());
                        return issued ? Result<Tenancy::Answer>(new_token(rotate.name, *issued)) : issued.error();
                    },
                    recording(reply, rotate.name, "gave " + rotate.name + " a new token"));
            },
            [&](const messages::RevokeTokens& revoke) {
                tenancy_.in_store(
                    Tenancy::Access::changes,
                    [revoke](policy::Store& store) -> Result<Tenancy::Answer> {
                        const auto id =
                            revoke.id == 0 ? std::nullopt : std::optional(static_cast<std::int64_t>(revoke.id));
                        GPUPOOL_TRY(store.revoke(revoke.name, id, unix_now_ms()));
                        return Tenancy::Answer(messages::Done{"the tokens are no longer valid"});
                    },
                    recording(reply, revoke.name, "revoked tokens of " + revoke.name));
            },
            [&](const messages::ShowLimits& show) { reply(show_limits(show.scope)); },
            [&](const messages::ChangeLimits& changes) {
                std::string tenant = changes.scope.name, session_id;
                if (changes.scope.kind == messages::LimitScope::Kind::session) {
                    Session* const session = find_session(changes.scope.name);
                    const Status changed =
                        session == nullptr
                            ? Error{ErrorCode::invalid_input, fmt::format("there is no session {}", changes.scope.name)}
                            : change_memory(*session, changes);
                    if (!changed) {
                        reply(messages::AdministrationError{changed.error().message});
                        return;
                    }
                    tenant = session->place.grant().tenant;
                    session_id = changes.scope.name;
                }
                tenancy_.in_store(
                    Tenancy::Access::changes,
                    [changes, by](policy::Store& store) { return change(store, changes, by); },
                    [this, reply, changes, tenant, session_id, record](messages::AdministrationAnswer answer) {
                        if (std::holds_alternative<messages::LimitList>(answer)) {
                            answer = show_limits(changes.scope);
                            record(tenant, session_id, "changed limits", details_of(changes));
                        }
                        reply(std::move(answer));
                    });
            },
            [&](const messages::EndSession& ended) {
                Session* const session = find_session(ended.session);
                if (session == nullptr) {
                    reply(messages::AdministrationError{fmt::format("there is no session {}", ended.session)});
                    return;
                }
                const std::string reason = ended.reason.empty() ? "an administrator ended it" : ended.reason;
                record(session->place.grant().tenant, ended.session, "ends the session: " + reason);
                end(*session, {by, reason, EndCause::administrator});
                reply(messages::Done{fmt::format("session {} ends", ended.session)});
            },
            [&](const messages::ShowUsage& show) {
                tenancy_.flush_usage([this, show, reply] {
                    tenancy_.in_store(
                        Tenancy::Access::reads,
                        [show](policy::Store& store) -> Result<Tenancy::Answer> {
                            policy::UsageQuery query;
                            query.tenant = show.tenant.empty() ? std::nullopt : std::optional(show.tenant);
                            query.first_day = show.first_day;
                            query.last_day = show.last_day;
                            query.most_rows = messages::kMaxUsageRows;
                            auto rows = store.usage(query);
                            if (!rows) {
                                return rows.error();
                            }
                            messages::UsageList list;
                            for (const policy::UsageRow& row : *rows) {
                                list.rows.push_back({row.day, row.tenant, row.amounts.sessions, row.amounts.gpu_ms,
                                                     row.amounts.byte_seconds, row.amounts.bytes_in,
                                                     row.amounts.bytes_out});
                            }
                            return Tenancy::Answer(std::move(list));
                        },
                        reply);
                });
            },
        },
        request);
}

Status Supervisor::change_memory(Session& session, const messages::ChangeLimits& changes) {
    const auto memory = memory_of(changes);
    if (!memory) {
        return memory.error();
    }
    if (!*memory) {
        return {};
    }
    for (const messages::LimitText& set : changes.set) {  // all or nothing
        if (const auto text = policy::check_override(set.key, set.value); !text) {
            return text.error();
        }
    }
    if (!session.place.taken()) {
        return Error{ErrorCode::unavailable, "the session's memory is not accounted for (see the server's log)"};
    }
    return session.place.change_memory(**memory);
}

Session* Supervisor::find_session(const std::string& id) const {
    const auto found = sessions_.find(id);
    return found == sessions_.end() || found->second->in_stock ? nullptr : found->second.get();
}

messages::AdministrationAnswer Supervisor::show_limits(const messages::LimitScope& scope) const {
    const policy::Policy& policy = *tenancy_.policy();
    switch (scope.kind) {
        case messages::LimitScope::Kind::everyone: return limits_of(policy, "", "");
        case messages::LimitScope::Kind::tenant: return limits_of(policy, scope.name, "");
        case messages::LimitScope::Kind::session: break;
    }
    const Session* const session = find_session(scope.name);
    if (session == nullptr) {
        return messages::AdministrationError{fmt::format("there is no session {}", scope.name)};
    }
    return limits_of(policy, session->place.grant().tenant, scope.name);
}

// Adds what the store does not know: the tenants of the configuration file, and what each has at the moment.
void Supervisor::complete(messages::TenantList& list) const {
    for (const std::string& name : tenancy_.policy()->tenants()) {
        auto found = std::find_if(list.tenants.begin(), list.tenants.end(),
                                  [&](const messages::TenantFacts& facts) { return facts.name == name; });
        if (found == list.tenants.end()) {
            list.tenants.push_back({});
            found = std::prev(list.tenants.end());
            found->name = name;
        }
        found->configured = true;
    }
    for (messages::TenantFacts& facts : list.tenants) {
        const policy::TenantUse use = places_.pool().use_of(facts.name);
        facts.sessions = static_cast<std::uint32_t>(use.sessions);
        facts.gpus = static_cast<std::uint32_t>(use.gpus);
        facts.promised_bytes = use.memory_bytes;
    }
}

}  // namespace gpupool::daemon
