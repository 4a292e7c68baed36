#include "common/quotas.h"

#include <algorithm>
#include <charconv>
#include <string>

#include "common/units.h"

namespace gpupool {
namespace {

Error bad(std::string_view part) {
    return Error{ErrorCode::invalid_input,
                 "cannot read the quota '" + std::string(part) +
                     "': give an amount like 8GiB once, and a device's own like 1=4GiB once for each device, below " +
                     std::to_string(Quotas::kMaxDevices)};
}

Status add(std::string_view part, Quotas& quotas) {
    const std::size_t sign = part.find('=');
    const auto bytes = parse_bytes(sign == std::string_view::npos ? part : part.substr(sign + 1));
    if (!bytes) {
        return bytes.error();
    }
    if (sign == std::string_view::npos) {
        if (quotas.each_bytes) {
            return bad(part);
        }
        quotas.each_bytes = *bytes;
        return {};
    }
    std::size_t device = 0;
    const char* const end = part.data() + sign;
    const auto read = std::from_chars(part.data(), end, device);
    if (read.ec != std::errc() || read.ptr != end || device >= Quotas::kMaxDevices ||
        !quotas.of_device.emplace(device, *bytes).second) {
        return bad(part);
    }
    return {};
}

}  // namespace

std::uint64_t Quotas::bytes(std::size_t device) const {
    const auto own = of_device.find(device);
    return own == of_device.end() ? each_bytes.value_or(0) : own->second;
}

std::uint64_t Quotas::least_bytes() const {
    std::optional<std::uint64_t> least = each_bytes;
    for (const auto& [device, bytes] : of_device) {
        least = std::min(least.value_or(bytes), bytes);
    }
    return least.value_or(0);
}

std::optional<std::size_t> Quotas::beyond(std::size_t count) const {
    const auto first = of_device.lower_bound(count);
    return first == of_device.end() ? std::nullopt : std::optional(first->first);
}

Result<Quotas> parse_quotas(std::string_view text) {
    Quotas quotas;
    for (;;) {
        const std::size_t comma = text.find(',');
        if (const Status added = add(text.substr(0, comma), quotas); !added) {
            return added.error();
        }
        if (comma == std::string_view::npos) {
            return quotas;
        }
        text.remove_prefix(comma + 1);
    }
}

}  // namespace gpupool
