#include "server/daemon/worker_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <unistd.h>

#include <cerrno>

#include "common/executable.h"

namespace gpupool::daemon {

namespace {

constexpr int kSupervisionDescriptor = 3;

// The two settings objects of posix_spawn, destroyed together.
struct SpawnSettings {
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;

    SpawnSettings() {
        ::posix_spawn_file_actions_init(&actions);
        ::posix_spawnattr_init(&attributes);
        sigset_t none;
        sigset_t all;
        ::sigemptyset(&none);
        ::sigfillset(&all);
        ::posix_spawnattr_setsigmask(&attributes, &none);
        ::posix_spawnattr_setsigdefault(&attributes, &all);
        ::posix_spawnattr_setpgroup(&attributes, 0);
        ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    }
    ~SpawnSettings() {
        ::posix_spawnattr_destroy(&attributes);
        ::posix_spawn_file_actions_destroy(&actions);
    }
    SpawnSettings(const SpawnSettings&) = delete;
    SpawnSettings& operator=(const SpawnSettings&) = delete;
};

Result<std::string> first_existing(const std::string& name, std::initializer_list<const char*> folders, int mode,
                                   const char* advice) {
    const std::string base = executable_directory();
    for (const char* folder : folders) {
        const std::string path = base + folder + name;
        if (::access(path.c_str(), mode) == 0) {
            return path;
        }
    }
    return Error{ErrorCode::unavailable, fmt::format("cannot find {} beside {}: {}", name, base, advice)};
}

}  // namespace

Result<std::string> find_worker(const std::string& setting) {
    if (setting.empty()) {
        return first_existing("gpupool-worker", {"/", "/../lib/gpupool/"}, X_OK,
                              "install it there, or name it in the setting worker");
    }
    if (::access(setting.c_str(), X_OK) != 0) {
        return system_error(fmt::format("the setting worker names {}, which cannot be executed", setting), errno);
    }
    return setting;
}

Result<std::string> find_software_driver() {
    return first_existing("libgpupool-softgpu.so", {"/", "/../lib/", "/../lib/gpupool/"}, R_OK,
                          "install it in the lib folder, or name a driver library with --driver PATH");
}

Result<pid_t> spawn(const std::string& program, std::vector<std::string> arguments, int output, int supervision) {
    SpawnSettings settings;
    ::posix_spawn_file_actions_addopen(&settings.actions, 0, "/dev/null", O_RDONLY, 0);
    ::posix_spawn_file_actions_adddup2(&settings.actions, output, 1);
    if (supervision >= 0) {
        ::posix_spawn_file_actions_adddup2(&settings.actions, supervision, kSupervisionDescriptor);
    }
    ::posix_spawn_file_actions_addclosefrom_np(&settings.actions, kSupervisionDescriptor + (supervision >= 0 ? 1 : 0));
    std::vector<char*> pointers;
    for (auto& argument : arguments) {
        pointers.push_back(argument.data());
    }
    pointers.push_back(nullptr);
    pid_t process = -1;
    const int failure =
        ::posix_spawn(&process, program.c_str(), &settings.actions, &settings.attributes, pointers.data(), environ);
    if (failure != 0) {
        return system_error(fmt::format("cannot start {}", program), failure);
    }
    return process;
}

Result<pid_t> spawn_worker(const std::string& worker, int supervision_descriptor, const isolation::Sandbox& sandbox) {
    std::vector<std::string> arguments{"gpupool-worker", "--supervision-fd", std::to_string(kSupervisionDescriptor)};
    const auto items = isolation::arguments_of(sandbox);
    arguments.insert(arguments.end(), items.begin(), items.end());
    return spawn(worker, std::move(arguments), STDERR_FILENO, supervision_descriptor);
}

}  // namespace gpupool::daemon
