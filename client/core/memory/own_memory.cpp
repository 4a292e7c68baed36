#include "client/core/memory/own_memory.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

namespace gpupool::client {
namespace {

// Makes the kernel perform an atomic OR with 0 on the word: EFAULT if it cannot be written. If the word is a futex of
// the application, its waiter may wake spuriously, as futex waiters have to expect.
bool is_writable(std::uint32_t* word) {
    constexpr std::uint32_t kAddNothing = FUTEX_OP(FUTEX_OP_OR, 0, FUTEX_OP_CMP_LT, 0);
    std::uint32_t unused_futex = 0;
    const long result = syscall(SYS_futex, &unused_futex, FUTEX_WAKE_OP_PRIVATE, 0, 0L, word, kAddNothing);
    return result >= 0 || errno != EFAULT;
}

}  // namespace

__attribute__((no_sanitize("thread", "address"))) bool read_own_memory(std::span<std::byte> target,
                                                                       const std::byte* source) {
    const auto start = reinterpret_cast<std::uint64_t>(source);
    // Not through the C library's function: sanitizers check its arguments, and the other side may be writing them.
    const iovec local{target.data(), target.size()};
    const iovec remote{reinterpret_cast<void*>(start), target.size()};
    const long got = syscall(SYS_process_vm_readv, getpid(), &local, 1UL, &remote, 1UL, 0UL);
    if (got < 0 && (errno == EPERM || errno == ENOSYS)) {
        std::memcpy(target.data(), source, target.size());
        return true;
    }
    return got == static_cast<long>(target.size());
}

bool own_memory_is_writable(std::byte* at, std::size_t bytes) {
    constexpr std::uint64_t kPage = 4096, kWord = sizeof(std::uint32_t);
    const auto start = reinterpret_cast<std::uint64_t>(at);
    for (std::uint64_t place = start; place < start + bytes; place = (place / kPage + 1) * kPage) {
        if (!is_writable(reinterpret_cast<std::uint32_t*>(place / kWord * kWord))) {
            return false;
        }
    }
    return true;
}

}  // namespace gpupool::client
