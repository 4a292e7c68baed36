#include "common/fatbin/select.h"

#include <fmt/format.h>

#include <algorithm>

namespace gpupool::fatbin {
namespace {

// A family is the minor versions of one major version, except 10.1 (later renamed to 11.0), which is a family of its
// own.
bool same_family(std::uint32_t entry_arch, std::uint32_t device_arch) {
    if (entry_arch / 10 != device_arch / 10 || device_arch < entry_arch) {
        return false;
    }
    return entry_arch == device_arch || (entry_arch != 101 && device_arch != 101);
}

// Larger is better, 0 means that the device cannot run it. The kind ranks before the architecture.
std::uint64_t rank(const Entry& entry, ComputeCapability device, Preference preference) {
    if (!runs_on(entry, device)) {
        return 0;
    }
    const bool wants_ptx = preference != Preference::cubin_only;
    const bool wants_machine_code = preference != Preference::ptx_only;
    std::uint64_t kind_rank = 0;
    switch (entry.kind) {
        case Kind::cubin: kind_rank = wants_machine_code ? 3 : 0; break;
        case Kind::ptx: kind_rank = wants_ptx ? 2 : 0; break;
        case Kind::lto_ir: kind_rank = wants_machine_code && wants_ptx ? 1 : 0; break;
    }
    return kind_rank == 0 ? 0 : (kind_rank << 32) + entry.arch;
}

// Order among entries of equal rank: arch-specific, family-specific, plain.
int specificity(const Entry& entry) {
    if ((entry.flags & flag::kArchSpecific) != 0) {
        return 2;
    }
    return (entry.flags & flag::kFamilySpecific) != 0 ? 1 : 0;
}

template <class T>
void put(std::vector<std::byte>& target, std::size_t offset, T value) {
    std::memcpy(target.data() + offset, &value, sizeof value);
}

}  // namespace

bool runs_on(const Entry& entry, ComputeCapability device) noexcept {
    if (entry.whole.empty() && entry.arch == 0) {
        return true;
    }
    const std::uint32_t device_arch = device.major * 10 + device.minor;
    if ((entry.flags & flag::kArchSpecific) != 0) {
        return entry.arch == device_arch;
    }
    if ((entry.flags & flag::kFamilySpecific) != 0) {
        return same_family(entry.arch, device_arch);
    }
    if (entry.kind == Kind::cubin) {
        return entry.arch / 10 == device.major && entry.arch <= device_arch;
    }
    return entry.arch <= device_arch;
}

std::vector<Entry> select(std::span<const Entry> entries, ComputeCapability device, Preference preference) {
    std::uint64_t best = 0;
    for (const Entry& entry : entries) {
        best = std::max(best, rank(entry, device, preference));
    }
    std::vector<Entry> chosen;
    if (best == 0) {
        return chosen;
    }
    for (const Entry& entry : entries) {
        if (rank(entry, device, preference) == best) {
            chosen.push_back(entry);
        }
    }
    std::stable_sort(chosen.begin(), chosen.end(),
                     [](const Entry& a, const Entry& b) { return specificity(a) > specificity(b); });
    return chosen;
}

Result<std::vector<std::byte>> repack(std::span<const Entry> entries) {
    std::uint64_t entries_bytes = 0;
    for (const Entry& entry : entries) {
        if (entry.whole.empty()) {
            return Error{ErrorCode::invalid_input, "code image: a bare cubin or PTX text has no container entry"};
        }
        entries_bytes += entry.whole.size();
    }
    if (entries_bytes > kMaxImageBytes - kContainerHeaderBytes) {
        return Error{ErrorCode::limit_exceeded,
                     fmt::format("code image: fat binary of {} bytes exceeds {}", entries_bytes, kMaxImageBytes)};
    }
    std::vector<std::byte> container(kContainerHeaderBytes);
    container.reserve(kContainerHeaderBytes + entries_bytes);
    put(container, 0, kContainerMagic);
    put(container, container_field::kVersion, kContainerVersion);
    put(container, container_field::kHeaderBytes, static_cast<std::uint16_t>(kContainerHeaderBytes));
    put(container, container_field::kEntriesBytes, entries_bytes);
    for (const Entry& entry : entries) {
        container.insert(container.end(), entry.whole.begin(), entry.whole.end());
    }
    return container;
}

}  // namespace gpupool::fatbin
