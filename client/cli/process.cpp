#include "client/cli/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace gpupool::cli {

namespace {

// Above the numbers that descriptors get in a child.
constexpr int kLowest = 10;

}  // namespace

Result<Pipe> make_pipe() {
    int ends[2] = {-1, -1};
    if (::pipe2(ends, O_CLOEXEC) != 0) {
        return system_error("pipe", errno);
    }
    UniqueFd read_low(ends[0]);
    UniqueFd write_low(ends[1]);
    Pipe pipe;
    pipe.read_end.reset(::fcntl(read_low.get(), F_DUPFD_CLOEXEC, kLowest));
    pipe.write_end.reset(::fcntl(write_low.get(), F_DUPFD_CLOEXEC, kLowest));
    if (!pipe.read_end || !pipe.write_end) {
        return system_error("fcntl(F_DUPFD_CLOEXEC)", errno);
    }
    return pipe;
}

Result<UniqueFd> make_file(const std::string& content) {
    const UniqueFd low(::memfd_create("gpupool", MFD_CLOEXEC));
    UniqueFd file(low ? ::fcntl(low.get(), F_DUPFD_CLOEXEC, kLowest) : -1);
    if (!file || ::fchmod(file.get(), 0600) != 0 ||
        ::write(file.get(), content.data(), content.size()) != static_cast<ssize_t>(content.size())) {
        return system_error("a file without a name", errno);
    }
    return file;
}

int spawn(const SpawnRequest& request, pid_t& process) {
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawnattr_init(&attributes);
    int next = 3;
    for (const int descriptor : request.descriptors) {
        ::posix_spawn_file_actions_adddup2(&actions, descriptor, next++);
    }
    short flags = POSIX_SPAWN_SETSIGMASK;
    ::posix_spawnattr_setsigmask(&attributes, &request.signal_mask);
    if (request.own_group) {
        flags |= POSIX_SPAWN_SETPGROUP;
        ::posix_spawnattr_setpgroup(&attributes, 0);
    }
    ::posix_spawnattr_setflags(&attributes, flags);
    std::vector<std::string> arguments = request.arguments;
    std::vector<char*> pointers;
    for (auto& argument : arguments) {
        pointers.push_back(argument.data());
    }
    pointers.push_back(nullptr);
    const auto start = request.search ? ::posix_spawnp : ::posix_spawn;
    const int failure = start(&process, request.program.c_str(), &actions, &attributes, pointers.data(), environ);
    ::posix_spawnattr_destroy(&attributes);
    ::posix_spawn_file_actions_destroy(&actions);
    return failure;
}

Result<std::string> random_token() {
    unsigned char bytes[32];
    if (::getrandom(bytes, sizeof(bytes), 0) != static_cast<ssize_t>(sizeof(bytes))) {
        return system_error("getrandom", errno);
    }
    std::string token;
    for (const auto byte : bytes) {
        token += fmt::format("{:02x}", byte);
    }
    return token;
}

}  // namespace gpupool::cli
