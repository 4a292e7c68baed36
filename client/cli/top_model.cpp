#include "client/cli/top_model.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

namespace gpupool::cli {

namespace {

template <class Value>
void append(std::deque<Value>& history, Value value) {
    history.push_back(value);
    if (history.size() > TopModel::kHistory) {
        history.pop_front();
    }
}

}  // namespace

std::string_view name_of(TopSort sort) {
    switch (sort) {
        case TopSort::copied: return "copied";
        case TopSort::age: return "age";
        case TopSort::tenant: return "tenant";
        case TopSort::memory: break;
    }
    return "memory";
}

void TopModel::update(ServerStatus status, TimePoint now) {
    const double seconds = updated_ ? std::chrono::duration<double>(now - *updated_).count() : 0;
    std::map<std::string, Session> sessions;
    for (const SessionStatus& shown : status.sessions) {
        const auto known = sessions_.find(shown.id);
        const bool is_new = known == sessions_.end();
        Session session = is_new ? Session() : std::move(known->second);
        const std::uint64_t copied = shown.bytes_in + shown.bytes_out;
        const std::uint64_t more = copied - std::min(copied, session.copied_bytes);
        const bool measured = !is_new && seconds > 0;
        append(session.memory_bytes, shown.memory_used_bytes);
        append(session.copied_per_second,
               measured ? static_cast<std::uint64_t>(static_cast<double>(more) / seconds) : std::uint64_t{0});
        session.copied_bytes = copied;
        session.now = shown;
        sessions.emplace(shown.id, std::move(session));
    }
    sessions_ = std::move(sessions);
    status_ = std::move(status);
    updated_ = now;
    lost_.reset();
}

void TopModel::lose(std::string why, TimePoint now) {
    if (!lost_) {
        lost_since_ = now;
    }
    lost_ = std::move(why);
}

std::uint64_t TopModel::lost_seconds(TimePoint now) const {
    return lost_
               ? static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::seconds>(now - lost_since_).count())
               : 0;
}

void TopModel::next_tenant() {
    std::set<std::string> tenants;
    for (const SessionStatus& session : status_.sessions) {
        tenants.insert(session.tenant);
    }
    for (const WaitingRequest& waiting : status_.queue) {
        tenants.insert(waiting.tenant);
    }
    const auto next = tenants.upper_bound(tenant_);
    tenant_ = next == tenants.end() ? "" : *next;
}

std::vector<const TopModel::Session*> TopModel::sessions() const {
    std::vector<const Session*> shown;
    for (const auto& [id, session] : sessions_) {
        if (tenant_.empty() || session.now.tenant == tenant_) {
            shown.push_back(&session);
        }
    }
    // The largest first, and texts by the alphabet. The id decides between equals, so that rows do not jump.
    std::ranges::stable_sort(shown, [this](const Session* a, const Session* b) {
        switch (sort_) {
            case TopSort::memory: return a->now.memory_used_bytes > b->now.memory_used_bytes;
            case TopSort::copied: return a->copied_now() > b->copied_now();
            case TopSort::age: return a->now.age_seconds > b->now.age_seconds;
            case TopSort::tenant: break;
        }
        return a->now.tenant < b->now.tenant;
    });
    if (reversed_) {
        std::ranges::reverse(shown);
    }
    return shown;
}

std::vector<const WaitingRequest*> TopModel::queue() const {
    std::vector<const WaitingRequest*> shown;
    for (const WaitingRequest& waiting : status_.queue) {
        if (tenant_.empty() || waiting.tenant == tenant_) {
            shown.push_back(&waiting);
        }
    }
    return shown;
}

}  // namespace gpupool::cli
