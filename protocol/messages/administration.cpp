#include "protocol/messages/administration.h"

#include <capnp/message.h>

#include <algorithm>

#include "protocol/messages/text.h"
#include "protocol/schema/administration.capnp.h"
#include "protocol/schema/control.capnp.h"

namespace gpupool::messages {
namespace {

unsigned size_of(std::size_t entries, std::size_t most) {
    return static_cast<unsigned>(std::min(entries, most));
}

template <class List>
Status check_size(const List& list, const char* what, std::size_t most) {
    return list.size() > most ? Status(too_long(what, most)) : Status();
}

void write_scope(const LimitScope& scope, schema::LimitScope::Builder out) {
    switch (scope.kind) {
        case LimitScope::Kind::everyone: out.setEveryone(); break;
        case LimitScope::Kind::tenant: out.setTenant(scope.name.c_str()); break;
        case LimitScope::Kind::session: out.setSession(scope.name.c_str()); break;
    }
}

Result<LimitScope> read_scope(schema::LimitScope::Reader in) {
    LimitScope scope;
    if (in.isTenant()) {
        scope.kind = LimitScope::Kind::tenant;
        GPUPOOL_TRY(read_text(in.getTenant(), "the tenant's name", scope.name));
    } else if (in.isSession()) {
        scope.kind = LimitScope::Kind::session;
        GPUPOOL_TRY(read_text(in.getSession(), "the session's id", scope.name));
    } else if (!in.isEveryone()) {
        return Error{ErrorCode::unsupported, "limits are asked for in a way that this server does not know"};
    }
    return scope;
}

void write_limits(const std::vector<LimitText>& limits, capnp::List<schema::LimitText>::Builder out) {
    for (unsigned i = 0; i < out.size(); ++i) {
        out[i].setKey(limits[i].key.c_str());
        out[i].setValue(limits[i].value.c_str());
        out[i].setOrigin(limits[i].origin.c_str());
    }
}

Result<std::vector<LimitText>> read_limits(capnp::List<schema::LimitText>::Reader in, std::size_t most) {
    GPUPOOL_TRY(check_size(in, "the list of limits", most));
    std::vector<LimitText> limits;
    for (const auto each : in) {
        LimitText& limit = limits.emplace_back();
        GPUPOOL_TRY(read_text(each.getKey(), "a limit's name", limit.key));
        GPUPOOL_TRY(read_text(each.getValue(), "a limit", limit.value));
        GPUPOOL_TRY(read_text(each.getOrigin(), "a limit's origin", limit.origin, kMaxSentenceBytes));
    }
    return limits;
}

// Writes the alternatives of a request.
struct RequestWriter {
    schema::AdministrationRequest::Builder out;

    void operator()(const ListTenants&) { out.setListTenants(); }
    void operator()(const AddTenant& request) {
        auto to = out.initAddTenant();
        to.setName(request.name.c_str());
        to.setAdministrator(request.administrator);
    }
    void operator()(const RotateToken& request) {
        auto to = out.initRotateToken();
        to.setName(request.name.c_str());
        to.setGraceMilliseconds(static_cast<std::uint64_t>(request.grace.count()));
    }
    void operator()(const RevokeTokens& request) {
        auto to = out.initRevokeTokens();
        to.setName(request.name.c_str());
        to.setId(request.id);
    }
    void operator()(const ShowLimits& request) { write_scope(request.scope, out.initShowLimits()); }
    void operator()(const ChangeLimits& request) {
        auto to = out.initChangeLimits();
        write_scope(request.scope, to.initScope());
        write_limits(request.set, to.initSet(size_of(request.set.size(), kMaxChanges)));
        auto unset = to.initUnset(size_of(request.unset.size(), kMaxChanges));
        for (unsigned i = 0; i < unset.size(); ++i) {
            unset.set(i, request.unset[i].c_str());
        }
    }
    void operator()(const EndSession& request) {
        auto to = out.initEndSession();
        to.setSession(request.session.c_str());
        to.setReason(request.reason.c_str());
    }
    void operator()(const ShowUsage& request) {
        auto to = out.initShowUsage();
        to.setTenant(request.tenant.c_str());
        to.setFirstDay(request.first_day);
        to.setLastDay(request.last_day);
    }
};

Result<AdministrationRequest> read_change(schema::AdministrationRequest::ChangeLimits::Reader in) {
    auto scope = read_scope(in.getScope());
    if (!scope) {
        return scope.error();
    }
    auto set = read_limits(in.getSet(), kMaxChanges);
    if (!set) {
        return set.error();
    }
    GPUPOOL_TRY(check_size(in.getUnset(), "the list of limits", kMaxChanges));
    ChangeLimits request{std::move(*scope), std::move(*set), {}};
    for (const auto key : in.getUnset()) {
        GPUPOOL_TRY(read_text(key, "a limit's name", request.unset.emplace_back()));
    }
    return AdministrationRequest(std::move(request));
}

Result<AdministrationRequest> read_request_of(schema::AdministrationRequest::Reader in) {
    using Which = schema::AdministrationRequest::Which;
    switch (in.which()) {
        case Which::LIST_TENANTS: return AdministrationRequest(ListTenants());
        case Which::ADD_TENANT: {
            AddTenant request;
            GPUPOOL_TRY(read_text(in.getAddTenant().getName(), "the tenant's name", request.name));
            request.administrator = in.getAddTenant().getAdministrator();
            return AdministrationRequest(std::move(request));
        }
        case Which::ROTATE_TOKEN: {
            RotateToken request;
            GPUPOOL_TRY(read_text(in.getRotateToken().getName(), "the tenant's name", request.name));
            const auto most = static_cast<std::uint64_t>(kMaxGrace.count());
            request.grace = std::chrono::milliseconds(std::min(in.getRotateToken().getGraceMilliseconds(), most));
            return AdministrationRequest(std::move(request));
        }
        case Which::REVOKE_TOKENS: {
            RevokeTokens request;
            GPUPOOL_TRY(read_text(in.getRevokeTokens().getName(), "the tenant's name", request.name));
            request.id = in.getRevokeTokens().getId();
            return AdministrationRequest(std::move(request));
        }
        case Which::SHOW_LIMITS: {
            auto scope = read_scope(in.getShowLimits());
            return scope ? Result<AdministrationRequest>(ShowLimits{std::move(*scope)}) : scope.error();
        }
        case Which::CHANGE_LIMITS: return read_change(in.getChangeLimits());
        case Which::END_SESSION: {
            EndSession request;
            GPUPOOL_TRY(read_text(in.getEndSession().getSession(), "the session's id", request.session));
            GPUPOOL_TRY(read_text(in.getEndSession().getReason(), "the reason", request.reason, kMaxSentenceBytes));
            return AdministrationRequest(std::move(request));
        }
        case Which::SHOW_USAGE: {
            ShowUsage request;
            GPUPOOL_TRY(read_text(in.getShowUsage().getTenant(), "the tenant's name", request.tenant));
            request.first_day = in.getShowUsage().getFirstDay();
            request.last_day = in.getShowUsage().getLastDay();
            return AdministrationRequest(std::move(request));
        }
    }
    return Error{ErrorCode::unsupported, "the request is unknown to this server, which may be older than the client"};
}

// Writes the alternatives of an answer.
struct AnswerWriter {
    schema::AdministrationAnswer::Builder out;

    void operator()(const AdministrationError& answer) {
        out.setError(answer.message.substr(0, kMaxSentenceBytes).c_str());
    }
    void operator()(const Done& answer) { out.setDone(answer.message.substr(0, kMaxSentenceBytes).c_str()); }
    void operator()(const TenantList& answer) {
        auto list = out.initTenants(size_of(answer.tenants.size(), kMaxTenants));
        for (unsigned i = 0; i < list.size(); ++i) {
            const TenantFacts& facts = answer.tenants[i];
            list[i].setName(facts.name.c_str());
            list[i].setAdministrator(facts.administrator);
            list[i].setAddedMilliseconds(facts.added_ms);
            auto tokens = list[i].initTokens(size_of(facts.tokens.size(), kMaxTokensListed));
            for (unsigned k = 0; k < tokens.size(); ++k) {
                tokens[k].setId(facts.tokens[k].id);
                tokens[k].setFingerprint(facts.tokens[k].fingerprint.c_str());
                tokens[k].setMadeMilliseconds(facts.tokens[k].made_ms);
                tokens[k].setEndsMilliseconds(facts.tokens[k].ends_ms);
            }
            list[i].setSessions(facts.sessions);
            list[i].setGpus(facts.gpus);
            list[i].setPromisedBytes(facts.promised_bytes);
            list[i].setConfigured(facts.configured);
        }
    }
    void operator()(const NewToken& answer) {
        auto to = out.initToken();
        to.setName(answer.name.c_str());
        to.setId(answer.id);
        to.setToken(answer.token.c_str());
    }
    void operator()(const LimitList& answer) {
        write_limits(answer.limits, out.initLimits(size_of(answer.limits.size(), kMaxLimits)));
    }
    void operator()(const UsageList& answer) {
        auto list = out.initUsage(size_of(answer.rows.size(), kMaxUsageRows));
        for (unsigned i = 0; i < list.size(); ++i) {
            const UsageFacts& row = answer.rows[i];
            list[i].setDay(row.day);
            list[i].setTenant(row.tenant.c_str());
            list[i].setSessions(row.sessions);
            list[i].setGpuMilliseconds(row.gpu_ms);
            list[i].setByteSeconds(row.byte_seconds);
            list[i].setBytesIn(row.bytes_in);
            list[i].setBytesOut(row.bytes_out);
        }
    }
};

Result<AdministrationAnswer> read_tenants(capnp::List<schema::Tenant>::Reader in) {
    GPUPOOL_TRY(check_size(in, "the list of tenants", kMaxTenants));
    TenantList answer;
    for (const auto each : in) {
        TenantFacts& facts = answer.tenants.emplace_back();
        GPUPOOL_TRY(read_text(each.getName(), "a tenant's name", facts.name));
        facts.administrator = each.getAdministrator();
        facts.added_ms = each.getAddedMilliseconds();
        GPUPOOL_TRY(check_size(each.getTokens(), "the list of tokens", kMaxTokensListed));
        for (const auto token : each.getTokens()) {
            TokenFacts& known = facts.tokens.emplace_back();
            known.id = token.getId();
            GPUPOOL_TRY(read_text(token.getFingerprint(), "a fingerprint", known.fingerprint));
            known.made_ms = token.getMadeMilliseconds();
            known.ends_ms = token.getEndsMilliseconds();
        }
        facts.sessions = each.getSessions();
        facts.gpus = each.getGpus();
        facts.promised_bytes = each.getPromisedBytes();
        facts.configured = each.getConfigured();
    }
    return AdministrationAnswer(std::move(answer));
}

Result<AdministrationAnswer> read_usage(capnp::List<schema::UsageRow>::Reader in) {
    GPUPOOL_TRY(check_size(in, "the list of usage", kMaxUsageRows));
    UsageList answer;
    for (const auto each : in) {
        UsageFacts& row = answer.rows.emplace_back();
        row.day = each.getDay();
        GPUPOOL_TRY(read_text(each.getTenant(), "a tenant's name", row.tenant));
        row.sessions = each.getSessions();
        row.gpu_ms = each.getGpuMilliseconds();
        row.byte_seconds = each.getByteSeconds();
        row.bytes_in = each.getBytesIn();
        row.bytes_out = each.getBytesOut();
    }
    return AdministrationAnswer(std::move(answer));
}

Result<AdministrationAnswer> read_answer_of(schema::AdministrationAnswer::Reader in) {
    using Which = schema::AdministrationAnswer::Which;
    switch (in.which()) {
        case Which::ERROR: {
            AdministrationError answer;
            GPUPOOL_TRY(read_text(in.getError(), "the message", answer.message, kMaxSentenceBytes));
            return AdministrationAnswer(std::move(answer));
        }
        case Which::DONE: {
            Done answer;
            GPUPOOL_TRY(read_text(in.getDone(), "the message", answer.message, kMaxSentenceBytes));
            return AdministrationAnswer(std::move(answer));
        }
        case Which::TENANTS: return read_tenants(in.getTenants());
        case Which::TOKEN: {
            NewToken answer;
            GPUPOOL_TRY(read_text(in.getToken().getName(), "the tenant's name", answer.name));
            answer.id = in.getToken().getId();
            GPUPOOL_TRY(read_text(in.getToken().getToken(), "the token", answer.token));
            return AdministrationAnswer(std::move(answer));
        }
        case Which::LIMITS: {
            auto limits = read_limits(in.getLimits(), kMaxLimits);
            return limits ? Result<AdministrationAnswer>(LimitList{std::move(*limits)}) : limits.error();
        }
        case Which::USAGE: return read_usage(in.getUsage());
    }
    return Error{ErrorCode::unsupported, "the answer is unknown to this client, which may be older than the server"};
}

}  // namespace

std::vector<std::byte> request_payload(const AdministrationRequest& request) {
    capnp::MallocMessageBuilder message;
    std::visit(RequestWriter{message.initRoot<schema::Control>().initAdministrationRequest()}, request);
    return payload_of(message);
}

std::vector<std::byte> answer_payload(const AdministrationAnswer& answer) {
    capnp::MallocMessageBuilder message;
    std::visit(AnswerWriter{message.initRoot<schema::Control>().initAdministrationAnswer()}, answer);
    return payload_of(message);
}

Result<AdministrationRequest> read_request(std::span<const std::byte> payload) {
    return read_message<schema::Control, AdministrationRequest>(
        payload, [](schema::Control::Reader control) -> Result<AdministrationRequest> {
            return control.isAdministrationRequest()
                       ? read_request_of(control.getAdministrationRequest())
                       : Error{ErrorCode::invalid_input, "the message is not a request of an administrator"};
        });
}

Result<AdministrationAnswer> read_answer(std::span<const std::byte> payload) {
    return read_message<schema::Control, AdministrationAnswer>(
        payload, [](schema::Control::Reader control) -> Result<AdministrationAnswer> {
            return control.isAdministrationAnswer()
                       ? read_answer_of(control.getAdministrationAnswer())
                       : Error{ErrorCode::invalid_input, "the message is not an answer to an administrator"};
        });
}

}  // namespace gpupool::messages
