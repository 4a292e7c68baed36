#include "protocol/transport/shm/memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <cerrno>
#include <utility>

namespace gpupool::transport::shm {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

Error not_shared(std::string_view why) {
    return {ErrorCode::invalid_input, fmt::format("the received descriptor is not valid shared memory: {}", why)};
}

}  // namespace

Status check_memory(int descriptor, std::size_t bytes) {
    const int seals = ::fcntl(descriptor, F_GET_SEALS);
    if (seals < 0) {
        return not_shared("it is not a memfd");
    }
    if ((seals & kSeals) != kSeals) {
        return not_shared("its size is not sealed");
    }
    struct statfs system {};
    // Huge pages can run out under a mapping, which causes a SIGBUS. Pages of a mounted file system of limited size
    // can, too, but its files cannot have these seals.
    if (::fstatfs(descriptor, &system) != 0 || system.f_type != TMPFS_MAGIC) {
        return not_shared("it does not consist of ordinary pages");
    }
    struct stat facts {};
    if (::fstat(descriptor, &facts) != 0) {
        return system_error("fstat", errno);
    }
    if (facts.st_size < 0 || static_cast<std::size_t>(facts.st_size) != bytes) {
        return not_shared(fmt::format("its size is {} bytes instead of {}", facts.st_size, bytes));
    }
    return {};
}

bool is_populated(int descriptor, std::size_t bytes) {
    constexpr std::size_t kBlockBytes = 512;  // the unit of st_blocks on every file system
    struct stat facts {};
    return ::fstat(descriptor, &facts) == 0 && static_cast<std::size_t>(facts.st_blocks) >= bytes / kBlockBytes;
}

SharedMemory::~SharedMemory() {
    if (!bytes_.empty()) {
        ::munmap(bytes_.data(), bytes_.size());
    }
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : descriptor_(std::move(other.descriptor_)), bytes_(std::exchange(other.bytes_, {})) {}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    std::swap(bytes_, other.bytes_);
    return *this;
}

Result<UniqueFd> SharedMemory::make_file(const char* name, std::size_t bytes) {
    // Beyond this limit ftruncate() sends a signal that kills the program.
    struct rlimit most {};
    if (::getrlimit(RLIMIT_FSIZE, &most) == 0 && bytes > most.rlim_cur) {
        return system_error("the process may not create files of that size", EFBIG);
    }
    UniqueFd descriptor(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!descriptor) {
        return system_error("memfd_create", errno);
    }
    if (::ftruncate(descriptor.get(), static_cast<off_t>(bytes)) != 0) {
        return system_error("ftruncate", errno);
    }
    if (::fcntl(descriptor.get(), F_ADD_SEALS, kSeals) != 0) {
        return system_error("cannot seal shared memory", errno);
    }
    return descriptor;
}

Result<SharedMemory> SharedMemory::make(const char* name, std::size_t bytes) {
    auto descriptor = make_file(name, bytes);
    if (!descriptor) {
        return descriptor.error();
    }
    return map(std::move(*descriptor), bytes);
}

Result<SharedMemory> SharedMemory::map(UniqueFd descriptor, std::size_t bytes) {
    GPUPOOL_TRY(check_memory(descriptor.get(), bytes));
    void* const place = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor.get(), 0);
    if (place == MAP_FAILED) {
        return system_error("cannot map shared memory", errno);
    }
    SharedMemory memory;
    memory.descriptor_ = std::move(descriptor);
    memory.bytes_ = {static_cast<std::byte*>(place), bytes};
    return memory;
}

}  // namespace gpupool::transport::shm
