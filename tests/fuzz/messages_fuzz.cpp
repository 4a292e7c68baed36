// Fuzzes the readers of what an administrator and a waiting or starting session exchange with the daemon, and of the
// texts of the policy: live changes of limits, names and token hashes.
//
// The input is used as it is, and as a difference to valid messages, since random bytes alone are refused at their
// first pointer.
#include <capnp/message.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string_view>
#include <vector>

#include "protocol/messages/administration.h"
#include "protocol/messages/session.h"
#include "protocol/messages/text.h"
#include "server/policy/limits.h"
#include "server/policy/tokens.h"

namespace {

using namespace gpupool;

std::vector<std::vector<std::byte>> good_messages() {
    const messages::LimitScope alice{messages::LimitScope::Kind::tenant, "alice"};
    std::vector<std::vector<std::byte>> all;
    for (const messages::AdministrationRequest& request : std::vector<messages::AdministrationRequest>{
             messages::AddTenant{"alice", true}, messages::RotateToken{"alice", std::chrono::hours(1)},
             messages::ChangeLimits{alice, {{"memory", "8GiB", ""}}, {"gpus"}}, messages::EndSession{"0123", "why"},
             messages::ShowUsage{"alice", 1, 2}}) {
        all.push_back(messages::request_payload(request));
    }
    for (const messages::AdministrationAnswer& answer : std::vector<messages::AdministrationAnswer>{
             messages::TenantList{{{"alice", false, 1, {{1, "0a", 2, 3}}, 4, 5, 6, true}}},
             messages::NewToken{"alice", 1, "gpt-x"}, messages::LimitList{{{"gpus", "2", "f:1"}}},
             messages::UsageList{{{1, "alice", 2, 3, 4, 5, 6}}}}) {
        all.push_back(messages::answer_payload(answer));
    }
    all.push_back(messages::waiting_payload({1, 2, "device 0 is full"}));
    capnp::MallocMessageBuilder welcome;
    messages::write_grant({"alice", {0, 1}, {1, 2}, SessionClass::exclusive, 50},
                          welcome.initRoot<schema::Welcome>().initGrant());
    all.push_back(messages::payload_of(welcome));
    return all;
}

void read(std::span<const std::byte> payload) {
    if (const auto request = messages::read_request(payload)) {
        // A request that was read can be written, and read again as the same.
        const auto again = messages::read_request(messages::request_payload(*request));
        if (!again || *again != *request) {
            std::abort();
        }
    }
    if (const auto answer = messages::read_answer(payload)) {
        const auto again = messages::read_answer(messages::answer_payload(*answer));
        if (!again || *again != *answer) {
            std::abort();
        }
    }
    (void)messages::read_waiting(payload);
    (void)messages::read_message<schema::Welcome, int>(payload, [](schema::Welcome::Reader in) -> Result<int> {
        if (const auto grant = messages::read_grant(in.getGrant())) {
            (void)messages::describe(*grant);
        }
        return 0;
    });
    (void)messages::read_message<schema::SessionRequest, int>(
        payload, [](schema::SessionRequest::Reader in) -> Result<int> { return messages::read_wishes(in) ? 1 : 0; });
}

void read_texts(std::string_view text) {
    for (const policy::LimitFacts& facts : policy::all_limits()) {
        if (const auto value = policy::parse_limit(facts.limit, text)) {
            const auto again = policy::parse_limit(facts.limit, policy::format_limit(facts.limit, *value));
            if (!again || !(*again == *value)) {
                std::abort();
            }
        }
    }
    (void)policy::check_name(text);
    (void)policy::parse_token_hash(text);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
    static const auto good = good_messages();
    const auto input = std::as_bytes(std::span(data, bytes));
    read(input);
    read_texts({reinterpret_cast<const char*>(data), bytes});
    if (!input.empty()) {
        auto message = good[static_cast<std::size_t>(input[0]) % good.size()];
        // Pairs of a position and a change.
        for (std::size_t i = 1; i + 1 < input.size(); i += 2) {
            message[static_cast<std::size_t>(input[i]) % message.size()] ^= input[i + 1];
        }
        read(message);
    }
    return 0;
}
