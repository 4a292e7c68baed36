// gpupool run: runs a program with gpupool's client library in place of the CUDA driver. gpupool trace: the same, with
// a timeline and a summary of the program's calls.
//
// Plain `run` replaces this process by the program, so exit code and signals are the program's. With --local or trace
// this process stays: it forwards signals, afterwards stops the private server and completes the trace, and ends the
// way the program did.
#include <fmt/format.h>
#include <limits.h>
#include <signal.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <sstream>

#include "client/cli/command.h"
#include "client/cli/local_server.h"
#include "client/cli/process.h"
#include "client/cli/settings.h"
#include "client/cli/trace_file.h"
#include "client/config.h"
#include "common/executable.h"
#include "common/quotas.h"
#include "common/session_class.h"
#include "common/units.h"
#include "protocol/transport/endpoint.h"

namespace gpupool::cli {

namespace {

struct Options {
    std::string server;
    std::string driver;
    std::string memory;
    std::size_t gpus = 0;       // 0: not given
    std::string session_class;  // empty: not given
    int priority = -1;          // -1: not given
    bool verbose = false;
    std::string server_config;
    std::string client_library;  // a folder
    bool local = false;
    bool trace = false;
    std::string trace_output = "gpupool-trace.json";
    std::string summary = client::kStandardErrorName;
    std::uint64_t trace_events = 0;  // 0: the client's setting
    std::vector<std::string> program;
};

Result<std::string> library_directory(const Options& options) {
    const std::string folder =
        options.client_library.empty() ? executable_directory() + "/../lib/gpupool" : options.client_library;
    char resolved[PATH_MAX];
    const std::string library = folder + "/libcuda.so.1";
    if (::realpath(folder.c_str(), resolved) == nullptr || ::access(library.c_str(), R_OK) != 0) {
        return Error{ErrorCode::unavailable,
                     fmt::format("gpupool's client library is not at {}: install it there, or name its folder with "
                                 "--client-library",
                                 library)};
    }
    return std::string(resolved);
}

// A name that no other program has. If the kernel has no random numbers yet, every process has a quota of its own.
std::string make_job_name() {
    std::array<std::uint64_t, 2> number{};
    return ::getrandom(number.data(), sizeof number, 0) == sizeof number
               ? fmt::format("{:016x}{:016x}", number[0], number[1])
               : std::string();
}

// Sets the environment in which a program loads gpupool's client library instead of the driver's.
void set_environment(const std::string& folder, const Options& options) {
    const char* inherited = std::getenv("LD_LIBRARY_PATH");
    const std::string path =
        inherited == nullptr || inherited[0] == '\0' ? folder : fmt::format("{}:{}", folder, inherited);
    ::setenv("LD_LIBRARY_PATH", path.c_str(), 1);
    ::setenv("TRITON_LIBCUDA_PATH", folder.c_str(), 1);                    // a folder, to link against
    ::setenv("NUMBA_CUDA_DRIVER", (folder + "/libcuda.so.1").c_str(), 1);  // a file, to load
    ::setenv("GPUPOOL_SERVER", options.server.c_str(), 1);
    if (!options.memory.empty()) {
        ::setenv("GPUPOOL_MEMORY", options.memory.c_str(), 1);
    }
    if (options.gpus != 0) {
        ::setenv("GPUPOOL_GPUS", std::to_string(options.gpus).c_str(), 1);
    }
    if (!options.session_class.empty()) {
        ::setenv("GPUPOOL_CLASS", options.session_class.c_str(), 1);
    }
    if (options.priority >= 0) {
        ::setenv("GPUPOOL_PRIORITY", std::to_string(options.priority).c_str(), 1);
    }
    if (options.verbose) {
        ::setenv("GPUPOOL_VERBOSE", "1", 1);
    }
    // The processes that the program starts inherit its job, and so share its GPUs and its quota of memory. A request
    // for other ones begins a new job.
    const bool asks = !options.memory.empty() || options.gpus != 0 || !options.session_class.empty();
    ::setenv("GPUPOOL_JOB", make_job_name().c_str(), asks ? 1 : 0);
    if (options.trace) {
        ::setenv("GPUPOOL_TRACE", options.trace_output.c_str(), 1);
        ::setenv("GPUPOOL_SUMMARY", options.summary.c_str(), 1);
    }
    if (options.trace_events != 0) {
        ::setenv("GPUPOOL_TRACE_EVENTS", std::to_string(options.trace_events).c_str(), 1);
    }
}

int cannot_start(const std::string& program, int errno_value) {
    if (errno_value == ENOENT) {
        complain(fmt::format("there is no program {}: check the name and PATH", program));
        return kExitNotFound;
    }
    complain(fmt::format("cannot execute {}: {}", program, std::strerror(errno_value)));
    return kExitCannotExecute;
}

// The errno that executing the program will give, 0 if no problem is seen. Checked before anything is started for the
// program.
int cannot_execute(const std::string& program) {
    const auto errno_for = [](const std::string& path) {
        struct stat facts {};
        if (::stat(path.c_str(), &facts) != 0) {
            return errno;
        }
        return S_ISREG(facts.st_mode) && ::access(path.c_str(), X_OK) == 0 ? 0 : EACCES;
    };
    if (program.find('/') != std::string::npos) {
        return errno_for(program);
    }
    const char* const path = std::getenv("PATH");
    // the last folder may be empty
    std::istringstream folders(std::string(path == nullptr ? "/bin:/usr/bin" : path) + ":");
    int found = ENOENT;
    for (std::string folder; found != 0 && std::getline(folders, folder, ':');) {
        const int there = errno_for(folder.empty() ? program : folder + "/" + program);
        found = there == 0 || there == EACCES ? there : found;
    }
    return found;
}

int become_program(const Options& options) {
    std::vector<std::string> arguments = options.program;
    std::vector<char*> pointers;
    for (auto& argument : arguments) {
        pointers.push_back(argument.data());
    }
    pointers.push_back(nullptr);
    ::execvp(pointers[0], pointers.data());
    return cannot_start(options.program[0], errno);
}

// Waits for the program's end and forwards signals to it. Returns its wait status.
int wait_for(pid_t process, const sigset_t& signals) {
    while (true) {
        int status = 0;
        if (::waitpid(process, &status, WNOHANG) == process) {
            return status;
        }
        siginfo_t info{};
        const int signal = ::sigwaitinfo(&signals, &info);
        // The terminal sends signals to the whole process group: the program has received them already.
        if (signal > 0 && signal != SIGCHLD && info.si_code != SI_KERNEL) {
            ::kill(process, signal);
        }
    }
}

// Ends this process in the way that the program ended.
int end_like(int status) {
    if (!WIFSIGNALED(status)) {
        return WEXITSTATUS(status);
    }
    const rlimit no_core{0, 0};
    ::setrlimit(RLIMIT_CORE, &no_core);  // the program has written its own, if it was to
    sigset_t one;
    ::sigemptyset(&one);
    ::sigaddset(&one, WTERMSIG(status));
    ::signal(WTERMSIG(status), SIG_DFL);
    ::sigprocmask(SIG_UNBLOCK, &one, nullptr);
    ::raise(WTERMSIG(status));
    return 128 + WTERMSIG(status);
}

// Blocks the signals that are forwarded, and returns them. `before`: the previous mask, for the program.
sigset_t keep_signals(sigset_t& before) {
    sigset_t signals;
    ::sigemptyset(&signals);
    for (const int signal : {SIGCHLD, SIGTERM, SIGHUP, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2}) {
        ::sigaddset(&signals, signal);
    }
    ::sigprocmask(SIG_BLOCK, &signals, &before);
    return signals;
}

// Runs the program as a child process. `status`: its wait status. Returns an exit code if it could not be started.
std::optional<int> run_child(const Options& options, const std::optional<TraceFiles>& files, const sigset_t& signals,
                             const sigset_t& before, int& status) {
    if (const Status begun = files ? files->begin() : Status(); !begun) {
        complain(begun.error().message);
        return kExitGpupoolFailed;
    }
    SpawnRequest request;
    request.program = options.program[0];
    request.arguments = options.program;
    request.search = true;
    request.signal_mask = before;
    pid_t process = -1;
    if (const int failure = spawn(request, process); failure != 0) {
        return cannot_start(options.program[0], failure);
    }
    status = wait_for(process, signals);
    return std::nullopt;
}

int run_local(Options& options, const std::string& folder, const std::optional<TraceFiles>& files) {
    sigset_t before;
    const sigset_t signals = keep_signals(before);
    auto server = LocalServer::start(options.driver, options.server_config);
    if (!server) {
        complain(server.error().message);
        return kExitGpupoolFailed;
    }
    options.server = server->address();
    set_environment(folder, options);
    ::setenv("GPUPOOL_TOKEN", server->token().c_str(), 1);

    int status = 0;
    if (const auto failed = run_child(options, files, signals, before, status)) {
        return *failed;
    }
    server->stop();
    if (options.trace) {
        complete_trace(options.trace_output);
    }
    return end_like(status);
}

int run_traced(const Options& options, const std::optional<TraceFiles>& files) {
    sigset_t before;
    const sigset_t signals = keep_signals(before);
    int status = 0;
    if (const auto failed = run_child(options, files, signals, before, status)) {
        return *failed;
    }
    complete_trace(options.trace_output);
    return end_like(status);
}

int run_program(Options& options) {
    if (options.program.empty()) {
        complain(fmt::format("no program to run: gpupool {} [OPTIONS] -- PROGRAM ARGUMENTS",
                             options.trace ? "trace" : "run"));
        return kExitUsage;
    }
    if (!options.memory.empty()) {
        const auto quotas = parse_quotas(options.memory);
        if (!quotas || quotas->least_bytes() < kLeastSessionMemoryBytes) {
            complain(quotas ? fmt::format("--memory: a quota below {} is too small to use a GPU",
                                          format_bytes(kLeastSessionMemoryBytes))
                            : quotas.error().within("--memory").message);
            return kExitUsage;
        }
    }
    if (const Status server = check_server_option(options.server); !server) {
        complain(server.error().message);
        return kExitUsage;
    }
    const auto folder = library_directory(options);
    if (!folder) {
        complain(folder.error().message);
        return kExitGpupoolFailed;
    }
    if (options.local) {
        // The program must not get the user's server and token. Other tokens are useless to the private server; its own
        // replaces this placeholder once it is known.
        ::unsetenv("GPUPOOL_SERVER");
        ::unsetenv("GPUPOOL_TOKEN_FILE");
        ::setenv("GPUPOOL_TOKEN", "the private server's", 1);
    }
    const auto settings = client_settings(options.server);
    if (!settings) {
        complain(settings.error().message);
        return kExitGpupoolFailed;
    }
    if (const int problem = cannot_execute(options.program[0]); problem != 0) {
        return cannot_start(options.program[0], problem);
    }
    std::optional<TraceFiles> files;
    if (options.trace) {
        auto opened = TraceFiles::open(options.trace_output, options.summary);
        if (!opened) {
            complain(opened.error().message);
            return kExitGpupoolFailed;
        }
        files = std::move(*opened);
    }
    if (options.local) {
        return run_local(options, *folder, files);
    }
    options.server = settings->server;
    set_environment(*folder, options);
    return options.trace ? run_traced(options, files) : become_program(options);
}

// Adds the options that `run` and `trace` have in common.
void add(CLI::App* command, const std::shared_ptr<Options>& options, Command& chosen,
         const std::vector<std::string>& program) {
    auto* server =
        command->add_option("--server", options->server,
                            fmt::format("HOST:PORT or unix:/PATH; default: GPUPOOL_SERVER, the configuration file, {}",
                                        transport::kDefaultAddress));
    auto* local = command->add_flag("--local", options->local, "Start a private server for this one program");
    command->add_option("--driver", options->driver, "With --local: auto (default), software, or a driver library")
        ->needs(local);
    command->add_option("--server-config", options->server_config, "With --local: the server's configuration file")
        ->needs(local);
    command->add_option("--memory", options->memory,
                        "Device memory to ask for, like 8GiB, or 8GiB,1=4GiB with 4GiB of device 1");
    command->add_option("--gpus", options->gpus, "How many GPUs to ask for (default: the server's choice)")
        ->check(CLI::Range(std::size_t{1}, Quotas::kMaxDevices));
    command->add_option("--class", options->session_class, "shared, or exclusive: GPUs that no other job uses")
        ->check(CLI::IsMember({"shared", "exclusive"}));
    command->add_option("--priority", options->priority, "In the server's queue, 0 to 100: higher goes first")
        ->check(CLI::Range(0, static_cast<int>(kMaxPriority)));
    command->add_flag("-v,--verbose", options->verbose, "Say on standard error what the session got");
    command->add_option("--client-library", options->client_library, "Folder of gpupool's libcuda.so.1");
    local->excludes(server);
    command->prefix_command();  // `--` is optional: the first word that is not an option begins the program
    command->callback([options, command, program, &chosen] {
        options->program = command->remaining();
        options->program.insert(options->program.end(), program.begin(), program.end());
        if (!options->program.empty() && program.empty() && options->program[0].starts_with("-")) {
            throw CLI::ExtrasError(command->get_name(), {options->program[0]});
        }
        if (!command->remaining().empty() && !program.empty()) {
            throw CLI::ExtrasError(command->get_name(), command->remaining());
        }
        chosen = [options] { return run_program(*options); };
    });
}

}  // namespace

void add_run(CLI::App& app, Command& chosen, const std::vector<std::string>& program) {
    add(app.add_subcommand("run", "Run a program on a server's GPU: gpupool run [OPTIONS] -- PROGRAM ARGS"),
        std::make_shared<Options>(), chosen, program);
}

void add_trace(CLI::App& app, Command& chosen, const std::vector<std::string>& program) {
    auto options = std::make_shared<Options>();
    options->trace = true;
    auto* command = app.add_subcommand(
        "trace", "Run a program and write a timeline of what it does: gpupool trace [OPTIONS] -- PROGRAM ARGS");
    command->add_option("--output", options->trace_output, "The timeline file, for ui.perfetto.dev")
        ->capture_default_str();
    command->add_option("--summary", options->summary, "The file for the summary of calls; -: standard error")
        ->capture_default_str();
    command->add_option("--events", options->trace_events, "How many events a process may write (default: 1000000)")
        ->check(CLI::Range(1, 1'000'000'000));
    add(command, options, chosen, program);
}

}  // namespace gpupool::cli
