#include "tests/e2e/daemon/harness.h"

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "protocol/schema/session.capnp.h"
#include "protocol/transport/endpoint.h"
#include "protocol/transport/tcp/connector.h"

namespace gpupool::test {

namespace {

std::string slurp(const std::string& path) {
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

kj::Array<capnp::word> to_words(const std::vector<std::byte>& payload) {
    auto words = kj::heapArray<capnp::word>(payload.size() / sizeof(capnp::word));
    std::memcpy(words.begin(), payload.data(), words.size() * sizeof(capnp::word));
    return words;
}

// Starts `arguments`, redirects stdout and stderr to files and, where `ready` is given, passes its write end as
// descriptor 3.
pid_t start(std::vector<std::string> arguments, std::vector<std::string> environment, const std::string& output,
            const std::string& errors, int ready) {
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_addopen(&actions, 1, output.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    ::posix_spawn_file_actions_addopen(&actions, 2, errors.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (ready >= 0) {
        ::posix_spawn_file_actions_adddup2(&actions, ready, 3);
    }
    for (char** inherited = environ; *inherited != nullptr; ++inherited) {
        const std::string entry = *inherited;
        const auto name = entry.substr(0, entry.find('=') + 1);
        if (name.starts_with("GPUPOOL_") ||
            std::any_of(environment.begin(), environment.end(),
                        [&](const std::string& own) { return own.starts_with(name); })) {
            continue;
        }
        environment.push_back(entry);
    }
    std::vector<char*> argument_pointers;
    std::vector<char*> environment_pointers;
    for (auto& argument : arguments) {
        argument_pointers.push_back(argument.data());
    }
    for (auto& entry : environment) {
        environment_pointers.push_back(entry.data());
    }
    argument_pointers.push_back(nullptr);
    environment_pointers.push_back(nullptr);
    pid_t process = -1;
    const int failure = ::posix_spawnp(&process, argument_pointers[0], &actions, nullptr, argument_pointers.data(),
                                       environment_pointers.data());
    ::posix_spawn_file_actions_destroy(&actions);
    EXPECT_EQ(failure, 0) << argument_pointers[0] << ": " << std::strerror(failure);
    return failure == 0 ? process : -1;
}

}  // namespace

bool process_exists(pid_t process) {
    if (::kill(process, 0) != 0) {
        return false;
    }
    // A zombie that the container's init has not reaped yet counts as ended.
    const std::string stat = slurp(fmt::format("/proc/{}/stat", process));
    const auto name_end = stat.rfind(')');
    return name_end != std::string::npos && stat.size() > name_end + 2 && stat[name_end + 2] != 'Z';
}

TemporaryFolder::TemporaryFolder() {
    std::string name = "/tmp/gpupool-test-XXXXXX";
    path_ = ::mkdtemp(name.data());
}

TemporaryFolder::~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
}

std::string TemporaryFolder::write(const std::string& name, const std::string& text, bool executable) const {
    std::string path = path_ + "/" + name;
    std::ofstream(path) << text;
    ::chmod(path.c_str(), executable ? 0700 : 0600);
    return path;
}

ProcessEnd run_program(const std::vector<std::string>& arguments, const std::vector<std::string>& environment) {
    const TemporaryFolder folder;
    ProcessEnd end;
    std::vector<std::string> entries = environment;
    entries.push_back("XDG_CACHE_HOME=" + folder.path() + "/cache");  // for a daemon that the test may start
    const pid_t process = start(arguments, entries, folder.path() + "/out", folder.path() + "/err", -1);
    if (process > 0) {
        ::waitpid(process, &end.status, 0);
    }
    end.output = slurp(folder.path() + "/out");
    end.errors = slurp(folder.path() + "/err");
    return end;
}

Daemon::Daemon(const std::string& settings, std::vector<std::string> environment)
    : settings_(settings), environment_(std::move(environment)) {
    environment_.push_back("XDG_CACHE_HOME=" + folder_.path() + "/cache");
    start();
}

Daemon::~Daemon() {
    (void)status();  // adds its current workers to workers_
    if (process_ > 0) {
        kill_hard();
    }
    for (const pid_t worker : workers_) {
        ::kill(worker, SIGKILL);
    }
    // The sanitizers' findings about the daemon and its workers appear only in this log.
    for (const char* finding : {"Sanitizer", "runtime error:"}) {
        EXPECT_EQ(log().find(finding), std::string::npos);
    }
    if (::testing::Test::HasFailure()) {
        std::fprintf(stderr, "---- the daemon's log:\n%s----\n", log().c_str());
    }
}

void Daemon::start() {
    ++starts_;
    const std::string own =
        fmt::format("runtime_directory = \"{}/run\"\nlog_level = \"debug\"\nlog_file = \"{}/log\"\n", folder_.path(),
                    folder_.path());
    // Defaults for what the test's settings do not give: address, worker and driver.
    std::string defaults;
    if (settings_.find("listen =") == std::string::npos) {
        defaults += fmt::format("listen = \"{}\"\n", address_);
    }
    if (settings_.find("worker =") == std::string::npos) {
        defaults += fmt::format("worker = \"{}\"\n", STAND_IN_WORKER);
    }
    if (settings_.find("state_directory =") == std::string::npos) {
        defaults += "state_directory = \"off\"\n";
    }
    if (settings_.find("driver =") == std::string::npos) {
        defaults += fmt::format("driver = \"{}\"\n", STAND_IN_WORKER);  // any file, since the stand-in loads no driver
    }
    const auto config = folder_.write("gpupoold.toml", own + defaults + settings_);
    int ends[2];
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    process_ = test::start({GPUPOOLD, "--config", config, "--ready-fd", "3"}, environment_, folder_.path() + "/stdout",
                           folder_.path() + "/log", ends[1]);
    ::close(ends[1]);
    UniqueFd ready(ends[0]);
    std::string line;
    char next = 0;
    while (::read(ready.get(), &next, 1) == 1 && next != '\n') {
        line += next;
    }
    if (line.empty()) {
        throw std::runtime_error("the daemon did not start:\n" + log());
    }
    address_ = line;
}

void Daemon::signal(int number) const {
    ::kill(process_, number);
}

void Daemon::kill_hard() {
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
    process_ = -1;
}

std::optional<int> Daemon::wait_for_end(milliseconds timeout) {
    int status = 0;
    if (!eventually([&] { return ::waitpid(process_, &status, WNOHANG) == process_; }, timeout)) {
        return std::nullopt;
    }
    process_ = -1;
    return status;
}

std::string Daemon::log() const {
    return slurp(folder_.path() + "/log");
}

Result<cli::ServerStatus> Daemon::status(const std::string& token) const {
    auto status = cli::ask_status(address_, token, milliseconds(5000));
    if (status) {
        for (const auto& session : status->sessions) {
            workers_.push_back(static_cast<pid_t>(session.worker_process_id));
        }
    }
    return status;
}

std::vector<cli::SessionStatus> Daemon::sessions(std::size_t count) const {
    std::vector<cli::SessionStatus> found;
    const bool seen = eventually([&] {
        const auto now = status();
        if (!now) {
            return false;
        }
        found = now->sessions;
        return found.size() == count && std::all_of(found.begin(), found.end(), [](const cli::SessionStatus& session) {
                   return session.state == "running";
               });
    });
    EXPECT_TRUE(seen) << "expected " << count << " running sessions, see " << found.size();
    return found;
}

std::size_t Daemon::open_descriptors() const {
    const auto folder = std::filesystem::directory_iterator(fmt::format("/proc/{}/fd", process_));
    return static_cast<std::size_t>(std::distance(begin(folder), end(folder)));
}

std::size_t Daemon::children() const {
    std::size_t count = 0;
    for (const auto& task : std::filesystem::directory_iterator(fmt::format("/proc/{}/task", process_))) {
        std::istringstream list(slurp(task.path().string() + "/children"));
        for (std::string child; list >> child;) {
            ++count;
        }
    }
    return count;
}

std::vector<std::byte> hello_payload(const HelloOptions& options) {
    capnp::MallocMessageBuilder message;
    auto hello = message.initRoot<schema::Hello>();
    hello.setProtocolVersion(options.protocol_version);
    hello.setToken(options.token.c_str());
    auto client = hello.initClient();
    client.setVersion("0.1.0");
    client.setHostname("test-host");
    client.setProcessName(options.process_name.c_str());
    client.setProcessId(static_cast<std::uint32_t>(::getpid()));
    client.setUserName(options.user_name.c_str());
    client.setUserId(1234);
    if (options.administration) {
        hello.getPurpose().setAdministration();
    } else if (options.lane) {
        auto lane = hello.getPurpose().initLane();
        lane.setSessionId("0123456789abcdef");
        lane.initSessionToken(32);
    } else {
        auto session = hello.getPurpose().initSession();
        session.initQuota().setMemoryBytes(options.memory_bytes);
        session.setCalls({reinterpret_cast<const kj::byte*>(options.calls.data()), options.calls.size()});
        session.setNotices({reinterpret_cast<const kj::byte*>(options.notices.data()), options.notices.size()});
        auto environment = session.initEnvironment(static_cast<unsigned>(options.environment.size()));
        for (unsigned i = 0; i < options.environment.size(); ++i) {
            environment[i].setName(options.environment[i].first.c_str());
            environment[i].setValue(options.environment[i].second.c_str());
        }
    }
    const auto words = capnp::messageToFlatArray(message);
    const auto bytes = words.asBytes();
    std::vector<std::byte> out(bytes.size());
    std::memcpy(out.data(), bytes.begin(), bytes.size());
    return out;
}

Client::Client(const std::string& address) {
    const auto endpoint = transport::Endpoint::parse(address);
    EXPECT_TRUE(endpoint);
    auto connection = transport::tcp::connect(*endpoint, transport::Clock::now() + std::chrono::seconds(5));
    if (!connection) {
        throw std::runtime_error(connection.error().message);
    }
    connection_ = std::move(connection).value();
}

void Client::send_hello(const HelloOptions& options) {
    const auto sent = wire::write_frame(*connection_, wire::FrameType::hello, hello_payload(options));
    EXPECT_TRUE(sent) << (sent ? "" : sent.error().message);
}

void Client::send_bytes(std::span<const std::byte> bytes) {
    const transport::ConstBuffer buffer = bytes;
    (void)connection_->send({&buffer, 1});
}

Result<wire::ReceivedFrame> Client::read(milliseconds timeout) {
    return wire::read_answer(*connection_, wire::kMaxPayloadBytes, transport::Clock::now() + timeout, timeout);
}

std::string Client::refusal(milliseconds timeout) {
    const auto frame = read(timeout);
    if (!frame || frame->type != wire::FrameType::refused) {
        ADD_FAILURE() << "expected Refused: " << (frame ? "another frame" : frame.error().message);
        return {};
    }
    const auto words = to_words(frame->payload);
    capnp::FlatArrayMessageReader reader(words);
    return reader.getRoot<schema::Refused>().getMessage().cStr();
}

std::string Client::welcome() {
    const auto frame = read();
    if (!frame || frame->type != wire::FrameType::welcome) {
        ADD_FAILURE() << "expected Welcome: " << (frame ? "another frame" : frame.error().message);
        return {};
    }
    const auto words = to_words(frame->payload);
    capnp::FlatArrayMessageReader reader(words);
    const auto welcome = reader.getRoot<schema::Welcome>();
    strays_ = std::atoi(welcome.getServerVersion().cStr());
    return welcome.getSessionId().cStr();
}

bool Client::ended(milliseconds timeout) {
    connection_->set_receive_deadline(transport::Clock::now() + timeout);
    std::byte buffer[4096];
    while (true) {
        const auto count = connection_->receive(buffer);
        if (!count) {
            return count.error().code == ErrorCode::closed;
        }
    }
}

}  // namespace gpupool::test
