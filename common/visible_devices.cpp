#include "common/visible_devices.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <numeric>
#include <string_view>

#include "common/trim.h"

namespace gpupool {
namespace {

constexpr std::string_view kUuidPrefix = "GPU-";

// As strtoul parses it: "1gpu" is 1. Text that does not begin with a number is invalid.
std::optional<int> by_ordinal(std::string_view entry, std::size_t device_count) {
    if (entry.starts_with('+')) {
        entry.remove_prefix(1);
    }
    int ordinal = -1;
    const auto [end, error] = std::from_chars(entry.data(), entry.data() + entry.size(), ordinal);
    if (error != std::errc() || ordinal < 0 || static_cast<std::size_t>(ordinal) >= device_count) {
        return std::nullopt;
    }
    return ordinal;
}

std::optional<int> by_uuid(std::string_view entry, std::span<const DeviceUuid> devices) {
    std::string wanted(entry.substr(kUuidPrefix.size()));
    std::transform(wanted.begin(), wanted.end(), wanted.begin(),
                   [](char c) { return c >= 'A' && c <= 'F' ? static_cast<char>(c - 'A' + 'a') : c; });
    std::optional<int> found;
    for (std::size_t i = 0; i < devices.size(); ++i) {
        if (!std::string_view(uuid_text(devices[i])).substr(kUuidPrefix.size()).starts_with(wanted)) {
            continue;
        }
        if (found) {
            return std::nullopt;  // ambiguous
        }
        found = static_cast<int>(i);
    }
    return found;
}

}  // namespace

std::optional<std::string> visible_among(const std::optional<std::string>& allowed,
                                         const std::optional<std::string>& wanted) {
    if (!allowed || !wanted) {
        return allowed ? allowed : wanted;
    }
    const auto entries = [](std::string_view list) {
        std::vector<std::string_view> found;
        for (bool more = true; more;) {
            const auto comma = list.find(',');
            found.push_back(trim(list.substr(0, comma)));
            more = comma != std::string_view::npos;
            if (more) {
                list.remove_prefix(comma + 1);
            }
        }
        return found;
    };
    const auto mine = entries(*allowed);
    std::string result;
    for (const std::string_view entry : entries(*wanted)) {
        std::optional<std::string_view> named;
        if (const auto same = std::find(mine.begin(), mine.end(), entry);
            entry.starts_with(kUuidPrefix) && same != mine.end()) {
            named = *same;
        } else if (const auto ordinal = by_ordinal(entry, mine.size())) {
            named = mine[static_cast<std::size_t>(*ordinal)];
        }
        if (!named) {
            break;  // as with the driver, an invalid entry ends the list
        }
        result += (result.empty() ? "" : ",") + std::string(*named);
    }
    return result;
}

std::string uuid_text(const DeviceUuid& uuid) {
    std::string text(kUuidPrefix);
    for (std::size_t i = 0; i < uuid.size(); ++i) {
        if (i == 4 || i == 6 || i == 8 || i == 10) {
            text += '-';
        }
        text += fmt::format("{:02x}", uuid[i]);
    }
    return text;
}

std::vector<int> visible_devices(const std::optional<std::string>& value, std::span<const DeviceUuid> devices) {
    std::vector<int> visible;
    if (!value) {
        visible.resize(devices.size());
        std::iota(visible.begin(), visible.end(), 0);
        return visible;
    }
    std::string_view rest = *value;
    const bool uuids = trim(rest).starts_with(kUuidPrefix);
    for (bool more = true; more;) {
        const auto comma = rest.find(',');
        const std::string_view entry = trim(rest.substr(0, comma));
        more = comma != std::string_view::npos;
        if (more) {
            rest.remove_prefix(comma + 1);
        }
        if (uuids != entry.starts_with(kUuidPrefix)) {
            break;
        }
        const auto device = uuids ? by_uuid(entry, devices) : by_ordinal(entry, devices.size());
        if (!device) {
            break;
        }
        if (std::find(visible.begin(), visible.end(), *device) != visible.end()) {
            return {};
        }
        visible.push_back(*device);
    }
    return visible;
}

DeviceUuid parse_uuid(const std::string& text) {
    DeviceUuid uuid{};
    std::string digits;
    std::copy_if(text.begin() + static_cast<std::ptrdiff_t>(std::min<std::size_t>(4, text.size())), text.end(),
                 std::back_inserter(digits), [](char c) { return c != '-'; });
    for (std::size_t i = 0; i < uuid.size() && 2 * i + 1 < digits.size(); ++i) {
        std::from_chars(digits.data() + 2 * i, digits.data() + 2 * i + 2, uuid[i], 16);
    }
    return uuid;
}

}  // namespace gpupool
