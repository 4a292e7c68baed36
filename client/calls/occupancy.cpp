// The occupancy calculator. An answer depends only on the function's attributes and the question, so the client asks
// the driver once and keeps the answer: libraries ask the same before every launch.

#include <algorithm>
#include <cstring>
#include <string>

#include "client/calls/handlers.h"
#include "client/calls/launch_config.h"
#include "client/core/dispatch/remote.h"
#include "client/core/images/code.h"

namespace gpupool::client::entry {
namespace {

// The bytes of everything that an answer depends on besides the function.
class Question {
  public:
    explicit Question(char kind) : text_(1, kind) {}
    template <class T>
    void add(const T& value) {
        text_.append(reinterpret_cast<const char*>(&value), sizeof value);
    }
    [[nodiscard]] const std::string& text() const { return text_; }

  private:
    std::string text_;
};

template <class T, class Ask>
CUresult answer_once(T* answer, CUfunction function, const Question& question, Ask ask) {
    ContextState* context = nullptr;
    CUresult result = usable_context(context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (answer == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    LaunchTarget target;
    if (result = find_launch_target(function, *context, target); result != CUDA_SUCCESS) {
        return result;
    }
    std::size_t known = 0;
    if (target.attributes->find_answer(question.text(), known)) {
        *answer = static_cast<T>(known);
        return CUDA_SUCCESS;
    }
    result = ask(answer);
    if (result == CUDA_SUCCESS) {
        target.attributes->keep_answer(question.text(), static_cast<std::size_t>(*answer));
    }
    return result;
}

CUresult active_blocks(int* blocks, CUfunction function, int block_size, std::size_t shared_bytes, unsigned flags) {
    Question question('b');
    question.add(block_size);
    question.add(shared_bytes);
    question.add(flags);
    return answer_once(blocks, function, question, [&](int* answer) {
        return remote<calls::cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags>(answer, function, block_size,
                                                                                   shared_bytes, flags);
    });
}

CUresult clusters(int* out, unsigned potential, CUfunction func, const CUlaunchConfig* config) {
    if (out == nullptr || config == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (const CUresult result = check_attributes(*config); result != CUDA_SUCCESS) {
        return result;
    }
    const LaunchShape shape = shape_of(*config, func);
    const auto ask = [&](int* answer) {
        return remote<calls::gpOccupancyClusters>(answer, potential, &shape, config->attrs, config->numAttrs);
    };
    Question question(potential != 0 ? 'p' : 'c');
    question.add(shape);
    for (unsigned i = 0; i < config->numAttrs; ++i) {
        question.add(config->attrs[i]);
    }
    return answer_once(out, func, question, ask);
}

// The best block size is the one with the most resident threads, which is the driver's own rule. The client tries the
// sizes one by one, because a function of the application computes the size of shared memory.
CUresult potential_block_size(int* minGridSize, int* blockSize, CUfunction func, CUoccupancyB2DSize dynamic,
                              std::size_t dynamicSMemSize, int blockSizeLimit, unsigned flags) {
    ContextState* context = nullptr;
    CUresult result = usable_context(context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (minGridSize == nullptr || blockSize == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const Device& device = this_session().devices.devices[static_cast<std::size_t>(context->device)];
    int limit = 0;
    LaunchTarget target;  // `func` may be a kernel
    if (result = find_launch_target(func, *context, target); result != CUDA_SUCCESS) {
        return result;
    }
    if (result = entry::cuFuncGetAttribute(&limit, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, target.function);
        result != CUDA_SUCCESS) {
        return result;
    }
    limit = std::min(limit, device_attribute(device, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK));
    limit = blockSizeLimit > 0 ? std::min(limit, blockSizeLimit) : limit;
    const int warp = device_attribute(device, CU_DEVICE_ATTRIBUTE_WARP_SIZE);
    int best_threads = 0, best_block = 0, best_blocks = 0;
    for (int rounded = (limit + warp - 1) / warp * warp; rounded > 0; rounded -= warp) {
        const int block = std::min(rounded, limit);
        const std::size_t shared = dynamic != nullptr ? dynamic(block) : dynamicSMemSize;
        int blocks = 0;
        result = active_blocks(&blocks, func, block, shared, flags);
        if (result != CUDA_SUCCESS) {
            return result;
        }
        if (blocks * block > best_threads) {
            best_threads = blocks * block;
            best_block = block;
            best_blocks = blocks;
        }
        if (best_threads == device_attribute(device, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR)) {
            break;
        }
    }
    *blockSize = best_block;
    *minGridSize = best_blocks * device_attribute(device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    return CUDA_SUCCESS;
}

}  // namespace

CUresult cuOccupancyMaxActiveClusters(int* numClusters, CUfunction func, const CUlaunchConfig* config) {
    return clusters(numClusters, 0, func, config);
}
CUresult cuOccupancyMaxPotentialClusterSize(int* clusterSize, CUfunction func, const CUlaunchConfig* config) {
    return clusters(clusterSize, 1, func, config);
}
CUresult cuOccupancyMaxPotentialBlockSize(int* minGridSize, int* blockSize, CUfunction func,
                                          CUoccupancyB2DSize blockSizeToDynamicSMemSize, std::size_t dynamicSMemSize,
                                          int blockSizeLimit) {
    return potential_block_size(minGridSize, blockSize, func, blockSizeToDynamicSMemSize, dynamicSMemSize,
                                blockSizeLimit, 0);
}
CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int* minGridSize, int* blockSize, CUfunction func,
                                                   CUoccupancyB2DSize blockSizeToDynamicSMemSize,
                                                   std::size_t dynamicSMemSize, int blockSizeLimit, unsigned flags) {
    return potential_block_size(minGridSize, blockSize, func, blockSizeToDynamicSMemSize, dynamicSMemSize,
                                blockSizeLimit, flags);
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* numBlocks, CUfunction func, int blockSize,
                                                     std::size_t dynamicSMemSize) {
    return active_blocks(numBlocks, func, blockSize, dynamicSMemSize, CU_OCCUPANCY_DEFAULT);
}
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* numBlocks, CUfunction func, int blockSize,
                                                              std::size_t dynamicSMemSize, unsigned flags) {
    return active_blocks(numBlocks, func, blockSize, dynamicSMemSize, flags);
}
CUresult cuOccupancyAvailableDynamicSMemPerBlock(std::size_t* dynamicSmemSize, CUfunction func, int numBlocks,
                                                 int blockSize) {
    Question question('s');
    question.add(numBlocks);
    question.add(blockSize);
    return answer_once(dynamicSmemSize, func, question, [&](std::size_t* answer) {
        return remote<calls::cuOccupancyAvailableDynamicSMemPerBlock>(answer, func, numBlocks, blockSize);
    });
}

}  // namespace gpupool::client::entry
