/* Stands in for libnvidia-ml.so.1: the functions that nvidia-ml-py calls to list GPUs and who computes on them.

   $NVML_STAND_IN names a file of lines "UUID;NAME;TOTAL;USED;UTILISATION;PID PID ...", one a GPU, memory in MiB. A
   number below 0 is one that this card can't tell. Built with -DINIT=9, it has no driver; with -DOLD, it is of a driver
   that can't list processes in the way of today. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9 };
#ifndef INIT
#define INIT SUCCESS
#endif

typedef struct {
    char uuid[96], name[96];
    long long total, used, utilisation;
    unsigned pids[16], n_pids;
} Gpu;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned gpu, memory; } Rates;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } Process;

static Gpu gpus[16];
static unsigned n_gpus;

int nvmlInitWithFlags(unsigned flags) {
    char line[512];
    FILE *file = INIT == SUCCESS ? fopen(getenv("NVML_STAND_IN"), "r") : NULL;
    (void)flags;
    for (n_gpus = 0; file && n_gpus < 16 && fgets(line, sizeof line, file); n_gpus++) {
        Gpu *gpu = &gpus[n_gpus];
        int end = 0, read;
        sscanf(line, "%95[^;];%95[^;];%lld;%lld;%lld;%n", gpu->uuid, gpu->name, &gpu->total, &gpu->used,
               &gpu->utilisation, &end);
        gpu->n_pids = 0;
        while (gpu->n_pids < 16 && sscanf(line + end, "%u%n", &gpu->pids[gpu->n_pids], &read) == 1) {
            end += read;
            gpu->n_pids++;
        }
    }
    if (file) fclose(file);
    return INIT;
}

int nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(int code) { return code == DRIVER_NOT_LOADED ? "Driver Not Loaded" : "Some Error"; }

int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = n_gpus;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Gpu **gpu) {
    if (index >= n_gpus) return INVALID_ARGUMENT;
    *gpu = &gpus[index];
    return SUCCESS;
}

int nvmlDeviceGetName(Gpu *gpu, char *text, unsigned length) {
    snprintf(text, length, "%s", gpu->name);
    return SUCCESS;
}

int nvmlDeviceGetUUID(Gpu *gpu, char *text, unsigned length) {
    snprintf(text, length, "%s", gpu->uuid);
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(Gpu *gpu, Memory *memory) {
    if (gpu->total < 0) return NOT_SUPPORTED;
    memory->total = (unsigned long long)gpu->total << 20;
    memory->used = (unsigned long long)gpu->used << 20;
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(Gpu *gpu, Rates *rates) {
    if (gpu->utilisation < 0) return NOT_SUPPORTED;
    rates->gpu = (unsigned)gpu->utilisation;
    rates->memory = 0;
    return SUCCESS;
}

#ifndef OLD
int nvmlDeviceGetComputeRunningProcesses_v3(Gpu *gpu, unsigned *count, Process *processes) {
    unsigned room = *count;
    *count = gpu->n_pids;
    if (room < gpu->n_pids) return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < gpu->n_pids; i++) processes[i] = (Process){gpu->pids[i], 1 << 20, ~0u, ~0u};
    return SUCCESS;
}
#endif
