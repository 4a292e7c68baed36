#include "protocol/codec/agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "protocol/calls/table.h"
#include "protocol/codec/core_set.h"
#include "protocol/codec/layout.h"

namespace gpupool::codec {
namespace {

constexpr std::size_t kMaxNamed = 10;  // in one message

Result<std::vector<Known>> read_list(std::span<const std::byte> bytes) {
    if (bytes.size() % sizeof(Known) != 0) {
        return Error{ErrorCode::invalid_input, "it ends within an entry"};
    }
    if (bytes.size() / sizeof(Known) > kMaxKnown) {
        return Error{ErrorCode::limit_exceeded, fmt::format("it has more than {} entries", kMaxKnown)};
    }
    std::vector<Known> list(bytes.size() / sizeof(Known));
    if (!list.empty()) {
        std::memcpy(list.data(), bytes.data(), bytes.size());
    }
    const auto out_of_order = [](const Known& a, const Known& b) { return a.number >= b.number; };
    if (std::adjacent_find(list.begin(), list.end(), out_of_order) != list.end()) {
        return Error{ErrorCode::invalid_input, "its entries are not in the order of their numbers"};
    }
    return list;
}

// Calls `both` for each entry that is in both lists, and `one` for each that is in one.
template <class Both, class One>
void compare(const std::vector<Known>& ours, const std::vector<Known>& theirs, Both both, One one) {
    auto our = ours.begin(), their = theirs.begin();
    while (our != ours.end() || their != theirs.end()) {
        if (their == theirs.end() || (our != ours.end() && our->number < their->number)) {
            one(our++->number, Mismatch::peer_lacks_it);
        } else if (our == ours.end() || their->number < our->number) {
            one(their++->number, Mismatch::we_lack_it);
        } else {
            both(*our++, *their++);
        }
    }
}

template <class Agreed>
void compare(const std::vector<Known>& ours, const std::vector<Known>& theirs, bool are_notices, Agreed agreed,
             std::vector<Difference>& differences) {
    const auto differ = [&](std::uint16_t number, Mismatch why) { differences.push_back({are_notices, number, why}); };
    compare(
        ours, theirs,
        [&](const Known& our, const Known& their) {
            if (our.layout != their.layout) {
                differ(our.number, Mismatch::layout);
            } else if (our.behaviour != their.behaviour) {
                differ(our.number, Mismatch::behaviour);
            } else {
                agreed(our.number);
            }
        },
        differ);
}

const char* text_of(Mismatch why, Ends::Side here) {
    const bool client_lacks_it = (why == Mismatch::we_lack_it) == (here == Ends::Side::client);
    switch (why) {
        case Mismatch::peer_lacks_it:
        case Mismatch::we_lack_it: return client_lacks_it ? "unknown to the client" : "unknown to the server";
        case Mismatch::layout: return "different layout";
        case Mismatch::behaviour: return "different behaviour";
    }
    return "";
}

std::string name_of(const Difference& difference) {
    if (difference.is_notice) {
        const std::string_view name = notice_name(static_cast<NoticeType>(difference.number));
        return name.empty() ? fmt::format("notice {}", difference.number) : fmt::format("notice {}", name);
    }
    const calls::CallInfo* const call = calls::find(difference.number);
    return call == nullptr ? fmt::format("call {}", difference.number) : std::string(call->name);
}

std::string list_of(const std::vector<Difference>& differences, Ends::Side here) {
    std::string text;
    const std::size_t named = std::min(differences.size(), kMaxNamed);
    for (std::size_t i = 0; i < named; ++i) {
        text +=
            fmt::format("{}{} ({})", i == 0 ? "" : ", ", name_of(differences[i]), text_of(differences[i].why, here));
    }
    if (differences.size() > named) {
        text += fmt::format(" and {} more", differences.size() - named);
    }
    return text;
}

bool concerns_core(const Difference& difference) {
    return difference.is_notice ? is_core(static_cast<NoticeType>(difference.number)) : is_core(difference.number);
}

}  // namespace

const Knowledge& own_knowledge() {
    static const Knowledge& knowledge = *[] {
        auto* const known = new Knowledge;
        for (const LayoutLine& line : layout_lines()) {
            if (line.travels) {
                (line.is_notice ? known->notices : known->calls).push_back({line.number, line.behaviour, line.hash()});
            }
        }
        return known;
    }();
    return knowledge;
}

Result<Knowledge> read_knowledge(std::span<const std::byte> calls, std::span<const std::byte> notices) {
    auto known_calls = read_list(calls);
    if (!known_calls) {
        return known_calls.error().within("the list of calls");
    }
    auto known_notices = read_list(notices);
    if (!known_notices) {
        return known_notices.error().within("the list of notices");
    }
    return Knowledge{std::move(*known_calls), std::move(*known_notices)};
}

Agreement::Agreement(const Knowledge& ours, const Knowledge& theirs) {
    compare(
        ours.calls, theirs.calls, false, [this](std::uint16_t opcode) { calls_.set(opcode); }, differences_);
    compare(
        ours.notices, theirs.notices, true,
        [this](std::uint16_t number) {
            if (number < kMaxNotices) {
                notices_.set(number);
            }
        },
        differences_);
    std::stable_partition(differences_.begin(), differences_.end(),
                          [](const Difference& difference) { return difference.why != Mismatch::we_lack_it; });
}

std::string Agreement::why_not(std::uint16_t opcode, Ends::Side here) const {
    const auto it = std::find_if(differences_.begin(), differences_.end(), [&](const Difference& difference) {
        return !difference.is_notice && difference.number == opcode;
    });
    return it == differences_.end() ? std::string() : text_of(it->why, here);
}

Status Agreement::check_core(const Ends& ends) const {
    std::vector<Difference> missing;
    std::copy_if(differences_.begin(), differences_.end(), std::back_inserter(missing), concerns_core);
    if (missing.empty()) {
        return {};
    }
    // Builds without git, or of changed sources, may have the same version and yet differ.
    const char* const advice = ends.client_version == ends.server_version ? "build both of the same sources"
                                                                          : "use a client of the server's version";
    return Error{ErrorCode::unsupported,
                 fmt::format("this client is gpupool {} and the server is gpupool {}: they do not agree on {}; {}",
                             ends.client_version, ends.server_version, list_of(missing, ends.here), advice)};
}

std::string Agreement::summary(const Ends& ends) const {
    if (differences_.empty()) {
        return {};
    }
    return fmt::format("client {}, server {}: {} calls in common; not usable: {}", ends.client_version,
                       ends.server_version, calls_in_common(), list_of(differences_, ends.here));
}

}  // namespace gpupool::codec
