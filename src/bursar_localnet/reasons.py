"""The sentences that nodes put beside a transaction's error, and how a failed run is answered."""

from typing import Any, Final

_TRANSACTION: Final = {
    "AccountInUse": "Account in use",
    "AccountLoadedTwice": "Account loaded twice",
    "AccountNotFound": "Attempt to debit an account but found no record of a prior credit.",
    "AddressLookupTableNotFound": ("Transaction loads an address table account that doesn't exist"),
    "AlreadyProcessed": "This transaction has already been processed",
    "BlockhashNotFound": "Blockhash not found",
    "InsufficientFundsForFee": "Insufficient funds for fee",
    "InvalidAccountForFee": "This account may not be used to pay transaction fees",
    "InvalidAddressLookupTableData": (
        "Transaction loads an address table account with invalid data"
    ),
    "InvalidAddressLookupTableIndex": "Transaction address table lookup uses an invalid index",
    "InvalidProgramForExecution": "This program may not be used for executing instructions",
    "InvalidRentPayingAccount": (
        "Transaction leaves an account with a lower balance than rent-exempt minimum"
    ),
    "MaxLoadedAccountsDataSizeExceeded": ("Transaction exceeded max loaded accounts data size cap"),
    "ProgramAccountNotFound": "Attempt to load a program that does not exist",
    "SanitizeFailure": "Transaction failed to sanitize accounts offsets correctly",
    "SignatureFailure": "Transaction did not pass signature verification",
    "TooManyAccountLocks": "Transaction locked too many accounts",
}
_INSTRUCTION: Final = {
    "AccountAlreadyInitialized": "instruction requires an uninitialized account",
    "AccountDataTooSmall": "account data too small for instruction",
    "ComputationalBudgetExceeded": "Computational budget exceeded",
    "IllegalOwner": "Provided owner is not allowed",
    "Immutable": "Account is immutable",
    "IncorrectAuthority": "Incorrect authority provided",
    "IncorrectProgramId": "incorrect program id for instruction",
    "InsufficientFunds": "insufficient funds for instruction",
    "InvalidAccountData": "invalid account data for instruction",
    "InvalidAccountOwner": "Invalid account owner",
    "InvalidArgument": "invalid program argument",
    "InvalidInstructionData": "invalid instruction data",
    "InvalidSeeds": "Provided seeds do not result in a valid address",
    "MissingAccount": "An account required by the instruction is missing",
    "MissingRequiredSignature": "missing required signature for instruction",
    "NotEnoughAccountKeys": "insufficient account keys for instruction",
    "PrivilegeEscalation": "Cross-program invocation with unauthorized signer or writable account",
    "ProgramFailedToComplete": "Program failed to complete",
    "UninitializedAccount": "instruction requires an initialized account",
    "UnsupportedProgramId": "Unsupported program id",
}


def reason(err: Any) -> str:
    """An error without a sentence of its own is called by its name."""
    match err:
        case str():
            return _TRANSACTION.get(err, err)
        case {"InstructionError": [index, {"Custom": code}]}:
            return f"Error processing Instruction {index}: custom program error: {code:#x}"
        case {"InstructionError": [index, str(name)]}:
            return f"Error processing Instruction {index}: {_INSTRUCTION.get(name, name)}"
        case {"InsufficientFundsForRent": {"account_index": index}}:
            return f"Transaction results in an account ({index}) with insufficient funds for rent"
        case {"DuplicateInstruction": index}:
            return f"Transaction contains a duplicate instruction ({index}) that is not allowed"
        case _:
            return str(err)
