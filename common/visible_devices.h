// Interprets CUDA_VISIBLE_DEVICES as NVIDIA's driver does: for the software GPU, and for an operator's restriction of
// it.
//
// Ownership: values; only the arguments are read. Threads: any. Errors: none; as with CUDA, an invalid entry ends the
// list, and the entries before it stay valid.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace gpupool {

using DeviceUuid = std::array<std::uint8_t, 16>;

// The indices of the `devices` that the program sees, in the order in which it numbers them. `value` is the variable,
// nullopt if it is unset (all devices are visible). An empty value hides all devices, "-1" ends the list, a repeated
// entry makes the list empty. Entries are ordinals (trailing garbage is ignored) or unambiguous prefixes of
// "GPU-<uuid>"; a list must not mix the two.
std::vector<int> visible_devices(const std::optional<std::string>& value, std::span<const DeviceUuid> devices);

// The value to give to a driver if the operator allows `allowed` (a value of the variable; nullopt: all devices) and
// the program asks for `wanted`, in which it numbers only the allowed devices. A UUID is passed on if the operator's
// list contains the same UUID.
std::optional<std::string> visible_among(const std::optional<std::string>& allowed,
                                         const std::optional<std::string>& wanted);

// "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6".
std::string uuid_text(const DeviceUuid& uuid);
// The opposite. Zeros for anything else.
DeviceUuid parse_uuid(const std::string& text);

}  // namespace gpupool
