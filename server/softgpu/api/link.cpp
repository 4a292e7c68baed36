// The linker: combines PTX of several units into one image, which only the software GPU can load.
#include "server/softgpu/ptx/link.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>

#include "common/mutex.h"
#include "server/softgpu/api/device_runtime.h"
#include "server/softgpu/api/image.h"
#include "server/softgpu/ptx/parser.h"

namespace gpupool::softgpu {

// A function or variable that several units may name.
struct LinkSymbol {
    // Of a function: its results, `/`, its parameters. Of a variable: its space. Then each with its kind ('f' floating,
    // 'i' integer, 'b' either, 'a' array) and size.
    std::vector<std::pair<char, std::uint64_t>> shape;
    std::string unit;  // that defines it, or else the first that names it
    bool function = false;
    bool defined = false;
    bool weak = false;
};

struct LinkState {
    JitOptions options;
    Mutex mutex;
    std::map<std::string, LinkSymbol, std::less<>> symbols GP_GUARDED_BY(mutex);
    bool failed GP_GUARDED_BY(mutex) = false;
    std::vector<ptx::Unit<std::string>> units GP_GUARDED_BY(mutex);
    // The program keeps a pointer to it, so it lives as long as the link state.
    std::string image GP_GUARDED_BY(mutex);
};

namespace {

constexpr std::size_t kMaxUnits = 4096;

Registry<LinkState>& link_states() {
    static Registry<LinkState>& instance = *new Registry<LinkState>;
    return instance;
}

CUresult fail(LinkState& state, CUresult error, const std::string& message) {
    write_jit_log(state.options, message);
    return error;
}

std::pair<char, std::uint64_t> shape_of(const ptx::Variable& variable) {
    using ptx::Type;
    const Type type = variable.type;
    const bool array = variable.size_bytes != ptx::width_bytes(type);
    const bool bits = type == Type::b8 || type == Type::b16 || type == Type::b32 || type == Type::b64;
    const bool real = type == Type::f16 || type == Type::bf16 || type == Type::f32 || type == Type::f64;
    return {array ? 'a' : bits ? 'b' : real ? 'f' : 'i', variable.size_bytes};
}

LinkSymbol symbol_of(const ptx::Function& function, const std::string& unit) {
    LinkSymbol symbol{{}, unit, true, function.defined, function.weak};
    for (const ptx::Variable& result : function.returns) {
        symbol.shape.push_back(shape_of(result));
    }
    symbol.shape.emplace_back('/', 0);
    for (const ptx::Variable& parameter : function.params) {
        symbol.shape.push_back(shape_of(parameter));
    }
    return symbol;
}

LinkSymbol symbol_of(const ptx::Variable& variable, const std::string& unit) {
    return {{{static_cast<char>('0' + static_cast<int>(variable.space)), 0}, shape_of(variable)},
            unit,
            false,
            !variable.external,
            variable.weak};
}

bool same_shape(const LinkSymbol& one, const LinkSymbol& other) {
    return std::equal(one.shape.begin(), one.shape.end(), other.shape.begin(), other.shape.end(),
                      [](const auto& a, const auto& b) {
                          const bool either = (a.first == 'b' && (b.first == 'f' || b.first == 'i')) ||
                                              (b.first == 'b' && (a.first == 'f' || a.first == 'i'));
                          return a.second == b.second && (a.first == b.first || either);
                      });
}

// Compares a symbol of a new unit with that of earlier ones. Returns what the driver's linker says, or nothing.
std::string add_symbol(LinkState& state, std::string_view name, LinkSymbol symbol) GP_REQUIRES(state.mutex) {
    const auto [at, is_new] = state.symbols.try_emplace(std::string(name), symbol);
    LinkSymbol& known = at->second;
    if (is_new) {
        return {};
    }
    const std::string where = "'" + std::string(name) + "' in '" + symbol.unit + "', first ";
    if (known.function != symbol.function || (symbol.function && !same_shape(known, symbol))) {
        return "error   : Prototype doesn't match for " + where + "defined in '" + known.unit + "'";
    }
    if (!symbol.function && known.shape[0] != symbol.shape[0]) {
        return "error   : Memory space doesn't match for " + where + "specified in '" + known.unit + "'";
    }
    const bool unsized = known.shape.back().second == 0 || symbol.shape.back().second == 0;
    if (!symbol.function && !unsized && known.shape[1].second != symbol.shape[1].second) {
        return "error   : Size doesn't match for " + where + "specified in '" + known.unit + "'";
    }
    if (known.defined && symbol.defined && !known.weak && !symbol.weak) {
        return "error   : Multiple definition of " + where + "defined in '" + known.unit + "'";
    }
    if (symbol.defined && !known.defined) {
        known = std::move(symbol);
    }
    return {};
}

std::string add_symbols(LinkState& state, const ptx::Module& unit, const std::string& name) GP_REQUIRES(state.mutex) {
    for (const ptx::Function& function : unit.functions) {
        const bool shared = function.visible || function.external || function.weak;
        std::string message = shared ? add_symbol(state, function.name, symbol_of(function, name)) : "";
        if (!message.empty()) {
            return message;
        }
    }
    for (const ptx::Variable& variable : unit.variables) {
        const bool shared = variable.visible || variable.external || variable.weak;
        std::string message = shared ? add_symbol(state, variable.name, symbol_of(variable, name)) : "";
        if (!message.empty()) {
            return message;
        }
    }
    return {};
}

// The options of a unit take precedence over those of the state.
CUresult add(CUlinkState handle, CUjitInputType type, std::string unit, const char* name, const JitOptions& own) {
    SOFTGPU_CONTEXT(context);
    const auto state = link_states().find(handle);
    if (state == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    const std::string called = name == nullptr || *name == '\0' ? "a unit" : name;
    const Lock lock(state->mutex);
    if (type < 0 || type >= CU_JIT_NUM_INPUT_TYPES || !own.valid) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (type == CU_JIT_INPUT_LIBRARY && unit.find(kDeviceRuntimeMember) != std::string::npos) {
        type = CU_JIT_INPUT_PTX;
        unit = kDeviceRuntimePtx;
    }
    if (type != CU_JIT_INPUT_PTX) {
        return fail(*state, CUDA_ERROR_NOT_SUPPORTED, called + " is not PTX: the software GPU links only PTX");
    }
    if (state->units.size() >= kMaxUnits) {
        return fail(*state, CUDA_ERROR_OUT_OF_MEMORY, "too many units to link");
    }
    // The size may include a terminating zero.
    unit.resize(std::min(unit.size(), unit.find('\0')));
    const auto parsed = ptx::parse(unit);
    if (!parsed) {
        const bool later = parsed.error().code == ErrorCode::unsupported;
        return fail(*state, later ? CUDA_ERROR_UNSUPPORTED_PTX_VERSION : CUDA_ERROR_INVALID_PTX,
                    "PTX of " + called + ": " + parsed.error().message);
    }
    if (const std::string message = add_symbols(*state, *parsed, called); !message.empty()) {
        state->failed = true;
        return fail(*state, CUDA_ERROR_INVALID_SOURCE, message);
    }
    const unsigned limit = own.max_registers != 0 ? own.max_registers : state->options.max_registers;
    // Loading the linked code limits nothing.
    state->units.push_back({std::move(unit), limit != 0 ? limit : ptx::kMostRegisters});
    return CUDA_SUCCESS;
}

CUresult complete(CUlinkState handle, void** image, std::size_t* bytes) {
    SOFTGPU_CONTEXT(context);
    const auto state = link_states().find(handle);
    if (state == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    SOFTGPU_NOT_NULL(image);
    const Lock lock(state->mutex);
    if (state->failed) {
        return CUDA_ERROR_INVALID_SOURCE;
    }
    std::string linked = ptx::join_units(state->units);
    // Compile it to find undefined symbols. Loading the image compiles it again.
    std::shared_ptr<CompiledModule> code;
    std::string message;
    if (compile_text(linked, 0, code, message) != CUDA_SUCCESS) {
        return fail(*state, CUDA_ERROR_INVALID_SOURCE, message);
    }
    state->image = std::move(linked);
    *image = state->image.data();
    if (bytes != nullptr) {
        *bytes = state->image.size() + 1;
    }
    return CUDA_SUCCESS;
}

CUresult create(unsigned count, CUjit_option* options, void** values, CUlinkState* result) {
    SOFTGPU_CONTEXT(context);
    if (result == nullptr || (count != 0 && (options == nullptr || values == nullptr))) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    auto state = std::make_shared<LinkState>();
    state->options = read_jit_options(count, options, values);
    if (!state->options.valid) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    link_states().add(state);
    *result = reinterpret_cast<CUlinkState>(state.get());
    return CUDA_SUCCESS;
}

CUresult add_data(CUlinkState state, CUjitInputType type, const void* data, std::size_t bytes, const char* name,
                  const JitOptions& own) {
    SOFTGPU_READY();
    if (data == nullptr || bytes == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return add(state, type, std::string(static_cast<const char*>(data), bytes), name, own);
}

CUresult add_file(CUlinkState state, CUjitInputType type, const char* path, const JitOptions& own) {
    SOFTGPU_READY();
    SOFTGPU_NOT_NULL(path);
    std::ifstream file(path, std::ios::binary);
    if (!file) {
        return CUDA_ERROR_FILE_NOT_FOUND;
    }
    return add(state, type, {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()}, path, own);
}

}  // namespace
}  // namespace gpupool::softgpu

using namespace gpupool::softgpu;

extern "C" {

CUresult CUDAAPI cuLinkCreate(unsigned count, CUjit_option* options, void** values, CUlinkState* state) {
    return create(count, options, values, state);
}
CUresult CUDAAPI cuLinkCreate_v2(unsigned count, CUjit_option* options, void** values, CUlinkState* state) {
    return create(count, options, values, state);
}
CUresult CUDAAPI cuLinkAddData(CUlinkState state, CUjitInputType type, void* data, size_t bytes, const char* name,
                               unsigned count, CUjit_option* options, void** values) {
    return add_data(state, type, data, bytes, name, read_jit_options(count, options, values));
}
CUresult CUDAAPI cuLinkAddFile(CUlinkState state, CUjitInputType type, const char* path, unsigned count,
                               CUjit_option* options, void** values) {
    return add_file(state, type, path, read_jit_options(count, options, values));
}
CUresult CUDAAPI cuLinkAddData_v2(CUlinkState state, CUjitInputType type, void* data, size_t bytes, const char* name,
                                  unsigned count, CUjit_option* options, void** values) {
    return add_data(state, type, data, bytes, name, read_jit_options(count, options, values));
}
CUresult CUDAAPI cuLinkAddFile_v2(CUlinkState state, CUjitInputType type, const char* path, unsigned count,
                                  CUjit_option* options, void** values) {
    return add_file(state, type, path, read_jit_options(count, options, values));
}
CUresult CUDAAPI cuLinkComplete(CUlinkState state, void** image, size_t* bytes) {
    return complete(state, image, bytes);
}
CUresult CUDAAPI cuLinkDestroy(CUlinkState state) {
    SOFTGPU_READY();
    return link_states().remove(state) == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

}  // extern "C"
