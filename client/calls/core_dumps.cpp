// Attributes of core dumps of the GPU. The client keeps them, with the driver's answers, but no dump is ever written:
// the driver would write it on the server, at a path of the program's choice. So dumps cannot be enabled.
#include <array>
#include <cstring>
#include <map>
#include <optional>
#include <string>

#include "client/calls/handlers.h"
#include "client/core/dispatch/remote.h"
#include "common/log.h"
#include "common/mutex.h"

namespace gpupool::client::entry {
namespace {

constexpr std::size_t kTextBytes = 1024;

// The attributes of one context, or of the process.
struct Attributes {
    unsigned generation_flags = CU_COREDUMP_DEFAULT_FLAGS;
    std::string file;
    std::string pipe;
};

struct Settings {
    Mutex mutex;
    Attributes process GP_GUARDED_BY(mutex);
    // Of contexts that have set one; the others have the process's.
    std::map<std::uint64_t, Attributes> contexts GP_GUARDED_BY(mutex);
};
Settings& settings() {
    static auto& instance = *new Settings;
    return instance;
}

// The size of an attribute's value; 0 for one that does not exist there.
std::size_t size_of(CUcoredumpSettings attribute, bool of_context) {
    switch (attribute) {
        case CU_COREDUMP_ENABLE_ON_EXCEPTION:
        case CU_COREDUMP_TRIGGER_HOST:
        case CU_COREDUMP_LIGHTWEIGHT: return 1;
        case CU_COREDUMP_ENABLE_USER_TRIGGER: return of_context ? 0 : 1;
        case CU_COREDUMP_FILE: return kTextBytes;
        case CU_COREDUMP_PIPE: return of_context ? 0 : kTextBytes;
        case CU_COREDUMP_GENERATION_FLAGS: return sizeof(unsigned);
        default: return 0;
    }
}

// Checks the arguments of all four calls. Without a value they ask for its size: then `done` is set.
CUresult check(CUcoredumpSettings attribute, bool of_context, const void* value, std::size_t* size, bool& done) {
    const std::size_t bytes = size_of(attribute, of_context);
    done = value == nullptr;
    if (size == nullptr || bytes == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (done) {
        *size = bytes;
        return CUDA_SUCCESS;
    }
    return bytes == kTextBytes || *size == bytes ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

void put_text(const std::string& text, void* value, std::size_t room) {
    std::memset(value, 0, room);
    if (room != 0) {
        std::memcpy(value, text.data(), std::min(text.size(), room - 1));
    }
}

void get(const Attributes& from, CUcoredumpSettings attribute, void* value, std::size_t room) {
    const auto put = [&](bool on) { *static_cast<unsigned char*>(value) = on ? 1 : 0; };
    switch (attribute) {
        case CU_COREDUMP_TRIGGER_HOST: put((from.generation_flags & CU_COREDUMP_SKIP_ABORT) == 0); break;
        case CU_COREDUMP_LIGHTWEIGHT:
            put((from.generation_flags & CU_COREDUMP_LIGHTWEIGHT_FLAGS) == CU_COREDUMP_LIGHTWEIGHT_FLAGS);
            break;
        case CU_COREDUMP_FILE: put_text(from.file, value, std::min(room, kTextBytes)); break;
        case CU_COREDUMP_PIPE: put_text(from.pipe, value, std::min(room, kTextBytes)); break;
        case CU_COREDUMP_GENERATION_FLAGS: std::memcpy(value, &from.generation_flags, sizeof(unsigned)); break;
        default: put(false); break;  // dumps are not enabled
    }
}

CUresult set(Attributes& to, CUcoredumpSettings attribute, const void* value, std::size_t size) {
    const bool on = *static_cast<const unsigned char*>(value) != 0;
    const auto switch_flags = [&](unsigned flags, bool set_them) {
        to.generation_flags = set_them ? to.generation_flags | flags : to.generation_flags & ~flags;
    };
    switch (attribute) {
        case CU_COREDUMP_TRIGGER_HOST: switch_flags(CU_COREDUMP_SKIP_ABORT, !on); break;
        case CU_COREDUMP_LIGHTWEIGHT: switch_flags(CU_COREDUMP_LIGHTWEIGHT_FLAGS, on); break;
        case CU_COREDUMP_FILE:
        case CU_COREDUMP_PIPE: {
            if (size > kTextBytes) {
                return CUDA_ERROR_INVALID_VALUE;
            }
            // The driver takes the text up to its zero byte whatever the size.
            const auto* const text = static_cast<const char*>(value);
            (attribute == CU_COREDUMP_FILE ? to.file : to.pipe) = std::string(text, strnlen(text, kTextBytes - 1));
            break;
        }
        case CU_COREDUMP_GENERATION_FLAGS: std::memcpy(&to.generation_flags, value, sizeof(unsigned)); break;
        default:
            if (on) {
                log::warn("no core dumps of the GPU are written: they cannot be enabled");
                return CUDA_ERROR_NOT_SUPPORTED;
            }
            break;
    }
    return CUDA_SUCCESS;
}

}  // namespace

CUresult cuCoredumpGetAttribute(CUcoredumpSettings attrib, void* value, std::size_t* size) {
    ContextState* context = nullptr;
    CUresult result = usable_context(context);
    bool done = false;
    result = result != CUDA_SUCCESS ? result : check(attrib, true, value, size, done);
    if (result == CUDA_SUCCESS && !done) {
        Settings& all = settings();
        const Lock lock(all.mutex);
        const auto own = all.contexts.find(context->id);
        get(own == all.contexts.end() ? all.process : own->second, attrib, value, *size);
    }
    return result;
}

CUresult cuCoredumpGetAttributeGlobal(CUcoredumpSettings attrib, void* value, std::size_t* size) {
    bool done = false;
    const CUresult result = check(attrib, false, value, size, done);
    if (result == CUDA_SUCCESS && !done) {
        Settings& all = settings();
        const Lock lock(all.mutex);
        get(all.process, attrib, value, *size);
    }
    return result;
}

CUresult cuCoredumpSetAttribute(CUcoredumpSettings attrib, void* value, std::size_t* size) {
    ContextState* context = nullptr;
    CUresult result = usable_context(context);
    bool done = false;
    result = result != CUDA_SUCCESS ? result : check(attrib, true, value, size, done);
    if (result != CUDA_SUCCESS || done) {
        return result;
    }
    Settings& all = settings();
    const Lock lock(all.mutex);
    return set(all.contexts.try_emplace(context->id, all.process).first->second, attrib, value, *size);
}

CUresult cuCoredumpSetAttributeGlobal(CUcoredumpSettings attrib, void* value, std::size_t* size) {
    bool done = false;
    const CUresult result = check(attrib, false, value, size, done);
    if (result != CUDA_SUCCESS || done) {
        return result;
    }
    Settings& all = settings();
    const Lock lock(all.mutex);
    return set(all.process, attrib, value, *size);
}

}  // namespace gpupool::client::entry
