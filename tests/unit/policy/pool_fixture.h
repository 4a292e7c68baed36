// A pool of GPUs whose decisions a test reads as short texts.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "server/policy/pool.h"

namespace gpupool::policy {

inline constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

inline std::vector<Device> make_devices(std::vector<std::uint64_t> sizes_gib) {
    std::vector<Device> devices;
    for (std::size_t i = 0; i < sizes_gib.size(); ++i) {
        Device device{"GPU", {}, sizes_gib[i] * kGiB, kGiB, 0};
        device.uuid[0] = static_cast<std::uint8_t>(i + 1);
        devices.push_back(device);
    }
    return devices;
}

inline std::shared_ptr<const Policy> make_policy(std::string_view text) {
    auto policy = Policy::parse(text, "test.toml");
    EXPECT_TRUE(policy) << (policy ? "" : policy.error().message);
    return policy ? std::make_shared<const Policy>(std::move(*policy)) : std::make_shared<const Policy>();
}

struct TestPool {
    TestPool(std::vector<std::uint64_t> sizes_gib, std::string_view text)
        : pool(make_devices(std::move(sizes_gib)), make_policy(text)) {}

    // What is decided: "a: 0 1" (devices), "a: waits 1/2", "a: refused", "a: refused for now".
    std::string decisions() {
        std::string all;
        for (const Decision& decision : pool.take()) {
            std::string text;
            if (const auto* grant = std::get_if<Grant>(&decision)) {
                text = grant->session + ":";
                for (const std::size_t device : grant->devices) {
                    text += fmt::format(" {}", device);
                }
            } else if (const auto* refusal = std::get_if<Refusal>(&decision)) {
                text = refusal->session + (refusal->later ? ": refused for now" : ": refused");
                last_text = refusal->message;
            } else {
                const auto& waiting = std::get<Waiting>(decision);
                text = fmt::format("{}: waits {}/{}", waiting.session, waiting.position, waiting.length);
                last_text = waiting.why;
            }
            all += (all.empty() ? "" : ", ") + text;
        }
        return all;
    }
    std::string ask(Request request) {
        pool.request(std::move(request), now_ms);
        return decisions();
    }
    std::string end(const std::string& session) {
        pool.end(session);
        return decisions();
    }

    Pool pool;
    std::int64_t now_ms = 0;
    std::string last_text;
};

// A session of `tenant` that waits an hour. 0: asks for no memory, no number of GPUs.
inline Request wish(std::string session, std::uint64_t gib = 0, std::size_t gpus = 0, std::string tenant = "alice") {
    Request request;
    request.session = std::move(session);
    request.tenant = std::move(tenant);
    request.wishes.wait = std::chrono::hours(1);
    if (gib != 0) {
        request.wishes.memory.each_bytes = gib * kGiB;
    }
    if (gpus != 0) {
        request.wishes.gpus = gpus;
    }
    return request;
}

inline Request of_job(std::string job, Request request) {
    request.job = std::move(job);
    return request;
}

inline Request with_priority(std::uint64_t priority, Request request) {
    request.wishes.priority = priority;
    return request;
}

inline Request exclusive(Request request) {
    request.wishes.session_class = SessionClass::exclusive;
    return request;
}

inline Request at_once(Request request) {
    request.wishes.wait = milliseconds(0);
    return request;
}

inline Request seeing(std::string visible, Request request) {
    request.visible = std::move(visible);
    return request;
}

}  // namespace gpupool::policy
