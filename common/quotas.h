// Quotas of device memory as people write them: one for every device of a server, and others for single devices.
//
// Ownership: values. Threads: any. Errors: Result; the message quotes the text and says which forms are accepted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string_view>

#include "common/result.h"

namespace gpupool {

struct Quotas {
    static constexpr std::size_t kMaxDevices = 64;

    std::optional<std::uint64_t> each_bytes;         // of each device that has none of its own
    std::map<std::size_t, std::uint64_t> of_device;  // by the server's number of the device

    // A device's quota. 0: none.
    [[nodiscard]] std::uint64_t bytes(std::size_t device) const;
    // The smallest of them. 0 also if there are none.
    [[nodiscard]] std::uint64_t least_bytes() const;
    [[nodiscard]] bool any() const { return each_bytes.has_value() || !of_device.empty(); }
    // The first device with a quota of its own from number `count` on.
    [[nodiscard]] std::optional<std::size_t> beyond(std::size_t count) const;
};

// "8GiB": that much of each device; "8GiB,1=4GiB": 4 GiB of device 1, 8 GiB of every other; "0=8GiB,1=4GiB": no quota
// of any other. Amounts as for parse_bytes().
Result<Quotas> parse_quotas(std::string_view text);

}  // namespace gpupool
