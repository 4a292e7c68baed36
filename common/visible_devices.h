// CUDA_VISIBLE_DEVICES, as the driver reads it: for drivers that are not NVIDIA's, and for what an operator allows.
//
// Ownership: values; nothing is read but the arguments. Threads: any. Errors: none: as with CUDA, an entry that names
// nothing ends the list, and what came before it stands.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace gpupool {

using DeviceUuid = std::array<std::uint8_t, 16>;

// Which of `devices` the program sees, in the order it will number them. `value` is the variable, nullopt where it is
// unset (everything is visible); the empty string hides all devices, "-1" ends the list, a repeated entry empties it.
// Entries are ordinals, of which trailing garbage is ignored, or unambiguous beginnings of "GPU-<uuid>"; the two do not
// mix.
std::vector<int> visible_devices(const std::optional<std::string>& value, std::span<const DeviceUuid> devices);

// What a driver is to be given where the operator shows `allowed` (the variable; unset: everything) and a program,
// which numbers only these, asks for `wanted`. A UUID is passed on where the operator named the same.
std::optional<std::string> visible_among(const std::optional<std::string>& allowed,
                                         const std::optional<std::string>& wanted);

// "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6".
std::string uuid_text(const DeviceUuid& uuid);

}  // namespace gpupool
