// The driver log: entries of failed calls, dumps to memory and to files, iterators, callbacks, CUDA_LOG_FILE.
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "tests/gpu/driver.h"

using namespace gpupool::programs;

namespace {

constexpr const char* kEntry = "Returning 101 (CUDA_ERROR_INVALID_DEVICE) from cuDeviceGet";

void fail() {
    CUdevice device = 0;
    check_result(cuDeviceGet(&device, 99), CUDA_ERROR_INVALID_DEVICE, "a call that fails");
}

CUlogIterator current() {
    CUlogIterator now = 0;
    DRIVER_OK(cuLogsCurrent(&now, 0));
    return now;
}

std::string dump(CUlogIterator* from, size_t room = 25600) {
    std::string text(room, '#');
    size_t bytes = room;
    DRIVER_OK(cuLogsDumpToMemory(from, text.data(), &bytes, 0));
    check(bytes < room && (bytes == 0 || text[bytes] == '\0'), "the text ends with a zero byte");
    text.resize(bytes);
    return text;
}

bool ends_with(const std::string& text, const std::string& end) {
    return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

size_t count_of(const std::string& text, const std::string& part) {
    size_t count = 0;
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
        count++;
    }
    return count;
}

void dumps() {
    CUlogIterator from = current();
    check(dump(&from).empty() && from == current(), "nothing was logged yet");
    fail();
    check(current() > from, "a failed call is logged");
    CUlogIterator again = from;
    const std::string text = dump(&from);
    check(
        ends_with(text, std::string(kEntry) + "\n") && text[0] == '[' && text.find("][CUDA][E] ") != std::string::npos,
        "by its name and result: %s", text.c_str());
    check(from == current() && dump(&from).empty(), "the iterator moved behind the entry");
    check(dump(&again) == text, "another one has it again");
    check(ends_with(dump(nullptr), text), "all entries end with it");
    CUevent event = nullptr;
    CUdevice device = 0;
    DRIVER_OK(cuDeviceGet(&device, 0));
    check_result(cuEventCreate(&event, 0), CUDA_ERROR_INVALID_CONTEXT, "a call without a context");
    const std::string without = dump(&from);
    check(without.find("No CUDA context is current to the calling thread\n") != std::string::npos &&
              ends_with(without, "Returning 201 (CUDA_ERROR_INVALID_CONTEXT) from cuEventCreate\n"),
          "the log says why: %s", without.c_str());
    check_result(cuLogsCurrent(nullptr, 0), CUDA_ERROR_INVALID_VALUE, "no place for the iterator");
}

void small_buffers() {
    CUlogIterator begin = current();
    for (int i = 0; i < 5; i++) {
        fail();
    }
    // A driver may write more than the size allows, hence the larger buffer.
    std::array<char, 4096> buffer{};
    size_t bytes = 500;
    CUlogIterator from = begin;
    DRIVER_OK(cuLogsDumpToMemory(&from, buffer.data(), &bytes, 0));
    const std::string text = buffer.data();
    check(text.find("The provided buffer is not large enough") == 0 && ends_with(text, std::string(kEntry) + "\n"),
          "a small buffer has the last entries: %s", text.c_str());
    std::array<char, 10> small{};
    bytes = small.size();
    from = begin;
    check_result(cuLogsDumpToMemory(&from, small.data(), &bytes, 0), CUDA_ERROR_INVALID_VALUE, "a buffer without room");
    check(bytes == 0, "nothing was written");
}

void roll_over() {
    CUlogIterator from = current();
    for (int i = 0; i < 300; i++) {
        CUdevice device = 0;
        (void)cuDeviceGet(&device, 99);
    }
    const std::string text = dump(&from);
    check(text.find("Log buffer has rolled over since the previous dump.") == 0,
          "old entries are gone, and it says so");
    check(count_of(text, "\n") == 101, "the last hundred are there: %zu lines", count_of(text, "\n"));
}

struct Heard {
    std::string text;
    CUlogLevel level = CU_LOG_LEVEL_WARNING;
    bool right_length = true;
};

void CUDA_CB hear(void* data, CUlogLevel level, char* message, size_t length) {
    auto& heard = *static_cast<Heard*>(data);
    heard.right_length &= length == std::strlen(message);
    heard.level = level;
    heard.text += std::string(message, length) + "\n";
}

void callbacks() {
    Heard one, other;
    CUlogsCallbackHandle first = nullptr, second = nullptr;
    DRIVER_OK(cuLogsRegisterCallback(hear, &one, &first));
    DRIVER_OK(cuLogsRegisterCallback(hear, &other, &second));
    check(first != second, "two callbacks");
    fail();
    DRIVER_OK(cuLogsUnregisterCallback(second));
    fail();
    check(count_of(one.text, std::string(kEntry) + "\n") == 2 && count_of(other.text, kEntry) == 1,
          "each got the message while it was registered: %s", one.text.c_str());
    check(one.right_length && one.level == CU_LOG_LEVEL_ERROR && one.text.find("[CUDA]") == std::string::npos,
          "as an error, the text alone");
    DRIVER_OK(cuLogsUnregisterCallback(first));
    fail();
    check(count_of(one.text, kEntry) == 2, "no more when it is not");
    check_result(cuLogsRegisterCallback(nullptr, nullptr, &first), CUDA_ERROR_INVALID_VALUE, "no function");
    check_result(cuLogsUnregisterCallback(nullptr), CUDA_ERROR_INVALID_VALUE, "no callback");
}

std::string content_of(const std::string& path) {
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

void files() {
    const std::string path = "/tmp/gpupool-driver-log." + std::to_string(getpid());
    CUlogIterator from = current(), same = from;
    fail();
    const std::string text = dump(&same);
    DRIVER_OK(cuLogsDumpToFile(&from, path.c_str(), 0));
    check(content_of(path) == text && from == same, "a file has the same entries");
    DRIVER_OK(cuLogsDumpToFile(nullptr, path.c_str(), 0));
    check(ends_with(content_of(path), text), "and then all, instead of these");
    check_result(cuLogsDumpToFile(nullptr, nullptr, 0), CUDA_ERROR_INVALID_VALUE, "no path");
    check_result(cuLogsDumpToFile(nullptr, "/nowhere/at/all", 0), CUDA_ERROR_INVALID_VALUE, "a path that is none");
    std::remove(path.c_str());
}

// CUDA_LOG_FILE must be set before the first call, hence another process.
void environment() {
    const std::string path = "/tmp/gpupool-driver-log-file." + std::to_string(getpid());
    setenv("CUDA_LOG_FILE", path.c_str(), 1);
    run_self("logged");
    unsetenv("CUDA_LOG_FILE");
    const std::string text = content_of(path);
    check(count_of(text, std::string(kEntry) + "\n") == 1, "CUDA_LOG_FILE has what failed: %s", text.c_str());
    std::remove(path.c_str());
}

}  // namespace

int main(int argc, char** argv) {
    Program program("driver_log", argc, argv);
    DRIVER_OK(cuInit(0));
    program.section("dumps", dumps);
    program.section("small_buffers", small_buffers);
    program.section("roll_over", roll_over);
    program.section("callbacks", callbacks);
    program.section("files", files);
    program.section("environment", environment);
    program.section("logged", fail, false);
    return program.finish();
}
